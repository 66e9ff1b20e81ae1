"""Numbers with units, percentages and fractions."""

from __future__ import annotations

import re

from s1_mini.text.english.abbreviations import DIRECTIONS
from s1_mini.text.english.dates import MONTHS
from s1_mini.text.english.money import SCALE, TO, is_adjective, scaled
from s1_mini.text.english.numerals import APPROXIMATE, NUMBER, cardinal, ordinal, part_of, parts_of, written
from s1_mini.text.tables import table, text_after, text_before, words

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
UNITS |= {f"{unit}{sign}": f"square {name}" for sign in ("²", "^2", "2") for unit, name in _SI.items()}
UNITS |= {f"{unit}{sign}": f"cubic {name}" for sign in ("³", "^3", "3") for unit, name in _SI.items()}
UNITS |= {unit.replace(" ", ". ", 1): name for unit, name in UNITS.items() if unit[:3] in ("sq ", "cu ", "fl ")}
UNITS |= table(
    "K=kelvin, kms=kilometer, kgs=kilogram, Tbsp=tablespoon, Tsp=teaspoon, doz=dozen, ft²=square foot, ft³=cubic foot, "
    "in²=square inch, mi²=square mile"
)
UNITS |= {unit.replace("µ", "μ"): name for unit, name in UNITS.items() if "µ" in unit}
_IRREGULAR = {"foot": "feet", "inch": "inches"}
_INVARIANT = frozenset(words("hertz kilohertz megahertz gigahertz terahertz bar dozen kelvin")) | {"P S I"}
UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))


def plural(name: str) -> str:
    head, per, rest = name.partition(" per ")
    first, space, last = head.rpartition(" ")
    if head.startswith("degree"):
        return name.replace("degree", "degrees", 1)
    if name in _INVARIANT:
        return name
    return f"{first}{space}{_IRREGULAR.get(last, last + 's')}{per}{rest}"


_RISKY = frozenset(("in", "pt", "MP", "bar"))  # also words or labels; as units only directly after a number
_PLUS_MINUS = r"(?<![\w)\]%°.])(?:([-+±~≈])\s?)?"
_MEASURE = re.compile(
    rf"{_PLUS_MINUS}(?<![\w.,/:])({NUMBER}){SCALE}(?<!\dm(?= in\b))"
    rf"(?:{TO}({NUMBER}))?(\s|-(?=[a-zA-Z]))?({UNIT})(?![\w²³^'·])"
    rf"(?!/\w)(\.(?=\s?[,;a-z]|\s?$))?",
    re.MULTILINE,
)
_RATE = re.compile(rf"(?<![\w.,/:])({NUMBER})\s?({UNIT})/({UNIT}|hour|day|week|month|year|person)(?![\w²³^])")
_PERCENT = re.compile(rf"{_PLUS_MINUS}(?<![\w.,/:])({NUMBER})\s?%?(?:{TO}([-+]?)({NUMBER}))?\s?([%‰])")
_FEET = re.compile(r"(?<![\w.,'])(\d{1,3})\s?['′]\s?(\d{1,2}(?:\.\d)?)\s?(?:\"|″|''|in\b)?")
_FEET_ALONE = re.compile(r"(?<![\w.,'])(\d{1,3})['′](?= (?:tall|long|wide|high|deep)\b)")
_INCHES = re.compile(rf"(?<![\w.,'])({NUMBER})(?:\"|″|'')(?!\w)")
_NOUN = re.compile(
    r" (?!(?:tall|wide|long|deep|high|thick|across|in|of|and|or|by|x|from|to|at|is|was|apart|away|off|on)\b)[a-z]"
)
_ROOM = re.compile(r"(?<![\w.,'])(\d{1,3})['′]? ?[x×] ?(\d{1,3})['′](?!\w)")
_KIND = re.compile(
    r" (?:race|dash|sprint|run|hurdles|relay|freestyle|battery|card|drive|disk|SSD|RAM|bottle|bag|screen|ruler|fence|"
    r"line|bulb|cable|rope|radius|stick|track|walk|swim|pipe|beam|monitor|lens)\b"
)
_CROWD = re.compile(
    r"(?<=\d)m(?= (?:people|users|views|followers|copies|customers|subscribers|downloads|jobs|homes)\b)"
)
_BY = re.compile(r"(?<=\d)( ?)[x×] ?(?=\d)")
_TIMES = re.compile(r"(?<![\w.,])(?<!= )(\d+(?:\.\d+)?)[x×](?!\w|\s?[-+=*/⋅]| (?:minus|over)\b)")
_DAY = re.compile(
    r"\b(?:on|by|until|till|due|since|before|after|from|ends?|starts?|date|through"
    r"|week of|from \d{1,2}/\d{1,2} to)\s$",
    re.IGNORECASE,
)
_FRACTION = re.compile(
    rf"(?<![\w.,/:])(?:(\d{{1,5}})(?: and)? )?(\d{{1,4}})/(\d{{1,4}})(?![\d/]|[.,]\d)"
    rf"(?:\s?({UNIT})(?![\w/²³^'·])(?:\.(?=,|\s[a-z]))?|(\"))?"
)
_MARK = re.compile(r"(?<![\w.,/:])(\d{1,2}\.\d)/(?=(?:5|10|100)(?![\d/]|[.,]\d))")
_COMPASS = re.compile(r"(?<=\d°)\s?([NSEW])\b(?!\.\w)")
_PAIRS = {(24, 7), (9, 11), (20, 20), (50, 50), (60, 40), (7, 11), (80, 20)}


def _is_product(found: re.Match[str]) -> bool:
    after = text_after(found, 12)
    is_last = "×" in found.group() and re.match(r"\d+(?:\.\d+)?\s*$", after)
    return bool(is_last) or "^" in after or "=" in found.string[found.start() : found.end() + 40]


def _fraction(found: re.Match[str]) -> str:
    whole, above, below, unit, quote = found[1], int(found[2]), int(found[3]), found[4], found[5] or ""
    if quote and found.string.count('"', 0, found.end()) % 2:
        unit, quote = "in", ""  # the mark does not close a quotation, so it means inches
    said = None if whole or unit else _score(found, above, below)
    if said is None and (below < 2 or below > 1000 or not 1 <= above <= 19):
        said = f"{written(whole) + ' ' if whole else ''}{written(found[2])} over {written(found[3])}"
    elif said is None:
        said = f"{cardinal(above)} {part_of(below) if above == 1 else parts_of(below)}"
        if whole:
            said = f"{written(whole)} and {'a half' if (above, below) == (1, 2) else said}"
        if unit:
            said = f"{said} {plural(UNITS[unit])}" if whole else _part_of(said, UNITS[unit])
    return said + quote


def _score(found: re.Match[str], above: int, below: int) -> str | None:
    """Spell out notation that only looks like a fraction: 24/7, a date after a time word, a score out of 10 or 100."""
    if (above, below) in _PAIRS or (above == below and above > 1):
        return f"{cardinal(above)} {cardinal(below)}"
    if 1 <= above <= 12 and 1 <= below <= 31 and _DAY.search(text_before(found, 40)):
        return f"{MONTHS[above - 1]} {ordinal(below)}"
    if below in (10, 100) and 1 < above <= below:
        return f"{cardinal(above)} out of {cardinal(below)}"
    return None


def _part_of(said: str, name: str) -> str:
    article = "an" if name[0] in "aeio" or name.startswith("hour") else "a"
    return f"half {article} {name}" if said == "one half" else f"{said} of {article} {name}"


def read_fractions(text: str) -> str:
    """Spell out fractions with their units, sizes such as 20 x 30, and points of the compass after degrees."""
    if "x" in text or "×" in text:
        text = _BY.sub(lambda found: " times " if _is_product(found) else " by ", text)
        text = _TIMES.sub(lambda found: f"{written(found[1])} times", text)
    text = _COMPASS.sub(lambda found: f" {DIRECTIONS[found[1]].lower()}", text)
    return _FRACTION.sub(_fraction, _MARK.sub(r"\1 out of ", text)) if "/" in text else text


def _is_exponent(found: re.Match[str], group: int) -> bool:
    return found.string[max(0, found.start(group) - 2) : found.start(group)].rstrip("+-").endswith("^")


def _measure(found: re.Match[str]) -> str:
    sign, number, scale, last, gap, unit, dot = found.groups()
    if unit == "K" and gap != " ":
        return found.group()  # 20K is a count
    if unit in _RISKY and gap == " " and not dot and not _is_length(found):
        return found.group()
    name = UNITS[unit]
    if _is_exponent(found, 2):
        return f"{sign or ''}{number} {plural(name)}"
    said = f"{scaled(number, scale)} to {written(last)}" if last else scaled(number, scale)
    is_kind = gap == "-" or is_adjective(found) or _KIND.match(found.string, found.end())
    is_one = is_kind or (not last and not scale and number == "1")
    stop = "." if dot and not re.match(r"\s?[,;a-z]", text_after(found, 2)) else ""
    return f"{APPROXIMATE.get(sign, '')}{said} {name if is_one else plural(name)}{stop}"


def _is_length(found: re.Match[str]) -> bool:
    """Return whether "in" means inches: it follows feet, or precedes x, by, or a word such as tall or wide."""
    before = text_before(found, 6)
    after = text_after(found, 6)
    is_followed = re.match(r" (?:x|by|tall|long|wide|high|deep)\b", after) is not None
    return found[6] == "in" and (before.endswith(("feet ", "foot ")) or is_followed)


def _rate(found: re.Match[str]) -> str:
    name = UNITS[found[2]]
    per = UNITS.get(found[3], found[3])
    number = found[1] if _is_exponent(found, 1) else written(found[1])
    return f"{number} {name if found[1] == '1' else plural(name)} per {per}"


def _percent(found: re.Match[str]) -> str:
    sign, number, last_sign, last, mark = found.groups()
    said = f"{written(number)} to {APPROXIMATE.get(last_sign, '')}{written(last)}" if last else written(number)
    return f"{APPROXIMATE.get(sign, '')}{said} {'percent' if mark == '%' else 'per mille'}"


def _inches(found: re.Match[str]) -> str:
    if '"' in found.group() and found.string.count('"', 0, found.start()) % 2:
        return found.group()  # the mark closes a quotation
    is_one = found[1] == "1" or _NOUN.match(text_after(found, 12))
    return f"{written(found[1])} {'inch' if is_one else 'inches'}"


def _feet(found: re.Match[str]) -> str:
    names = ("minute", "second") if float(found[2]) >= 12 else ("foot", "inch")
    large, small = (name if number == "1" else plural(name) for number, name in zip(found.groups(), names, strict=True))
    return f"{cardinal(int(found[1]))} {large} {written(found[2])} {small}"


def read_measures(text: str) -> str:
    if "%" in text or "‰" in text:
        text = _PERCENT.sub(_percent, text)
    if "'" in text or "′" in text:
        text = _ROOM.sub(lambda found: f"{cardinal(int(found[1]))} by {cardinal(int(found[2]))} feet", text)
        text = _FEET.sub(_feet, text)
        text = _FEET_ALONE.sub(lambda found: f"{cardinal(int(found[1]))} feet", text)
    text = _CROWD.sub(" million", text)
    text = _MEASURE.sub(_measure, _RATE.sub(_rate, text))
    return _INCHES.sub(_inches, text) if '"' in text or "″" in text or "''" in text else text
