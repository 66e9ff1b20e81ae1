"""Units: how they are written, and what one of each is called."""

from __future__ import annotations

import re

from s1_mini.text.tables import table, words

_SI = table("km=kilometer, m=meter, dm=decimeter, cm=centimeter, mm=millimeter, µm=micrometer, nm=nanometer")
UNITS = _SI | table(
    "mi=mile, ft=foot, yd=yard, in=inch, sq ft=square foot, sq mi=square mile, sq m=square meter, sq km=square "
    "kilometer, cu ft=cubic foot, nmi=nautical mile, kg=kilogram, g=gram, mg=milligram, µg=microgram, lb=pound, "
    "lbs=pound, oz=ounce, l=liter, L=liter, ml=milliliter, mL=milliliter, cl=centiliter, dl=deciliter, "
    "gal=gallon, pt=pint, qt=quart, fl oz=fluid ounce, tbsp=tablespoon, tsp=teaspoon, s=second, sec=second, "
    "secs=second, ms=millisecond, µs=microsecond, ns=nanosecond, min=minute, mins=minute, h=hour, hr=hour, "
    "hrs=hour, yrs=year, yr=year, Hz=hertz, kHz=kilohertz, MHz=megahertz, GHz=gigahertz, THz=terahertz, W=watt, "
    "kW=kilowatt, MW=megawatt, GW=gigawatt, Wh=watt hour, kWh=kilowatt hour, MWh=megawatt hour, V=volt, "
    "mV=millivolt, kV=kilovolt, mA=milliamp, mAh=milliamp hour, Ω=ohm, kΩ=kilohm, J=joule, kJ=kilojoule, "
    "MJ=megajoule, Pa=pascal, hPa=hectopascal, kPa=kilopascal, psi=P S I, bar=bar, mbar=millibar, dB=decibel, "
    "lm=lumen, kB=kilobyte, KB=kilobyte, MB=megabyte, GB=gigabyte, TB=terabyte, PB=petabyte, KiB=kibibyte, "
    "MiB=mebibyte, GiB=gibibyte, TiB=tebibyte, kbps=kilobit per second, Mbps=megabit per second, Gbps=gigabit per "
    "second, Mbit/s=megabit per second, Gbit/s=gigabit per second, mph=mile per hour, kph=kilometer per hour, "
    "km/h=kilometer per hour, m/s=meter per second, m/s²=meter per second squared, m/s2=meter per second squared, "
    "kn=knot, mpg=mile per gallon, rpm=revolution per minute, bpm=beat per minute, fps=frame per second, dpi=dot "
    "per inch, px=pixel, kcal=kilocalorie, cal=calorie, ha=hectare, ppm=part per million, °C=degree Celsius, ° "
    "C=degree Celsius, °F=degree Fahrenheit, ° F=degree Fahrenheit, °=degree, ℃=degree Celsius, ℉=degree "
    "Fahrenheit, MP=megapixel, mol=mole, mg/dl=milligram per deciliter"
)
UNITS |= {f"{unit}{sign}": f"square {name}" for unit, name in _SI.items() for sign in ("²", "^2")}
UNITS |= {f"{unit}{sign}": f"cubic {name}" for unit, name in _SI.items() for sign in ("³", "^3")}
UNITS |= {f"{unit}2": f"square {name}" for unit, name in _SI.items()}
UNITS |= {f"{unit}3": f"cubic {name}" for unit, name in _SI.items()}
UNITS |= {unit.replace(" ", ". ", 1): name for unit, name in UNITS.items() if unit[:3] in ("sq ", "cu ", "fl ")}
UNITS |= {"K": "kelvin", "kms": "kilometer", "kgs": "kilogram"}
UNITS |= {"Tbsp": "tablespoon", "Tsp": "teaspoon", "doz": "dozen"}
UNITS |= {"ft²": "square foot", "ft³": "cubic foot", "in²": "square inch", "mi²": "square mile"}
UNITS |= {unit.replace("µ", "μ"): name for unit, name in UNITS.items() if "µ" in unit}
_IRREGULAR = {"foot": "feet", "inch": "inches"}
_INVARIANT = frozenset(words("hertz kilohertz megahertz gigahertz terahertz bar dozen kelvin")) | {"P S I"}
UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))


def plural(name: str) -> str:
    """Return the name of several of a unit."""
    head, per, rest = name.partition(" per ")
    first, space, last = head.rpartition(" ")
    if head.startswith("degree"):
        return name.replace("degree", "degrees", 1)
    if name in _INVARIANT:
        return name
    return f"{first}{space}{_IRREGULAR.get(last, last + 's')}{per}{rest}"
