"""Numbers with units, percentages and fractions."""

from __future__ import annotations

import re

from s1_mini.text.english.abbreviations import DIRECTIONS
from s1_mini.text.english.dates import MONTHS
from s1_mini.text.english.money import EACH, SCALE, TO, is_adjective, scaled
from s1_mini.text.english.numerals import APPROXIMATE, NUMBER, cardinal, ordinal, part_of, parts_of, written
from s1_mini.text.stops import is_final
from s1_mini.text.tables import table, text_after, text_before, word_set, words

_SI = table("km=kilometer, m=meter, dm=decimeter, cm=centimeter, mm=millimeter, µm=micrometer, nm=nanometer")
UNITS = _SI | table(
    "mi=mile, ft=foot, yd=yard, in=inch, sq ft=square foot, sq mi=square mile, sq m=square meter, sq km=square "
    "kilometer, cu ft=cubic foot, nmi=nautical mile, kg=kilogram, g=gram, mg=milligram, µg=microgram, lb=pound, "
    "lbs=pound, oz=ounce, l=liter, L=liter, ml=milliliter, mL=milliliter, cl=centiliter, dl=deciliter, "
    "dL=deciliter, µL=microliter, Nm=newton meter, N·m=newton meter, kts=knot, bbl=barrel, ng=nanogram, "
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
    "m/s^2=meter per second squared, mmol=millimole, µmol=micromole, IU=international unit, "
    "mIU=milli-international unit, mmHg=millimeter of mercury, "
    "kn=knot, mpg=mile per gallon, rpm=revolution per minute, bpm=beat per minute, fps=frame per second, dpi=dot "
    "per inch, px=pixel, kcal=kilocalorie, cal=calorie, ha=hectare, ppm=part per million, °C=degree Celsius, ° "
    "C=degree Celsius, °F=degree Fahrenheit, ° F=degree Fahrenheit, °=degree, ℃=degree Celsius, ℉=degree "
    "Fahrenheit, MP=megapixel, mol=mole"
)
UNITS |= {f"{unit}{sign}": f"square {name}" for sign in ("²", "^2", "2") for unit, name in _SI.items()}
UNITS |= {f"{unit}{sign}": f"cubic {name}" for sign in ("³", "^3", "3") for unit, name in _SI.items()}
UNITS |= {unit.replace(" ", ". ", 1): name for unit, name in UNITS.items() if unit[:3] in ("sq ", "cu ", "fl ")}
UNITS |= table(
    "hp=horsepower, bhp=brake horsepower, K=kelvin, Tbsp=tablespoon, Tsp=teaspoon, ly=light year, doz=dozen, "
    "pct=percent, mo=month, wk=week, pkg=package, pkt=packet, deg=degree, cts=cent, tbs=tablespoon, pcs=piece, "
    "ft²=square foot, ft³=cubic foot, in²=square inch, mi²=square mile, lb-ft=pound foot, lb.-ft=pound foot, "
    "ft-lb=foot pound, pts=point, reb=rebound, ppg=point per game, mth=month, mcg=microgram, "
    "pg/mL=picogram per milliliter, mEq=milliequivalent, bps=basis point, ac=acre"
)
UNITS |= {f"{unit}s": UNITS[unit] for unit in words("km kg qt gal yd oz tbsp tsp mo wk pkg pkt mth ft-lb")}
UNITS |= {unit.replace("µ", "μ"): name for unit, name in UNITS.items() if "µ" in unit}
_IRREGULAR = {"foot": "feet", "inch": "inches"}
_INVARIANT = word_set("percent hertz kilohertz megahertz gigahertz terahertz bar dozen kelvin horsepower") | {"P S I"}
UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))


def plural(name: str) -> str:
    head, per, rest = name.partition(" of " if " of " in name else " per ")
    first, space, last = head.rpartition(" ")
    if head.startswith("degree"):
        return name.replace("degree", "degrees", 1)
    if name in _INVARIANT or name.endswith("horsepower"):
        return name
    return f"{first}{space}{_IRREGULAR.get(last, last + 's')}{per}{rest}"


_RISKY = frozenset(("in", "pt", "MP", "bar"))  # also words or labels; as units only directly after a number
_PLUS_MINUS = r"(?<![\w)\]%°.])(?:([-+±~≈])\s?)?"
_MEASURE = re.compile(
    rf"{_PLUS_MINUS}(?<![\w.,/:])(?<![A-Za-z]-)({NUMBER}){SCALE}(?<!\dm(?= in\b))(?<!\d m(?= in\b))"
    rf"(?:{TO}({NUMBER}))?(\s|-(?=[a-zA-Z]))?({UNIT})(?![\w²³^'·])"
    rf"(?!/\w)(\.(?!\w|\.))?"
)
_RATE = re.compile(
    rf"{_PLUS_MINUS}(?<![\w.,/:])(?:({NUMBER}){TO})?({NUMBER})\s?({UNIT})/({UNIT}|{EACH})(?:/(h|hr|min|{EACH}))?(?![\w²³^/])"
)
_PER_NUMBER = re.compile(  # 30 mg/5 mL, 4 doses/24 h
    r"(?<=[\d ])([mkµ]?g|[mcd]?[Ll]|mmol|m?IU|k?cal|k?Wh|(?!(?:hour|day|week)s/)[a-z]{2,20}s)"
    rf"/(?={NUMBER}\s?(?:h|hrs?|hours|days|min|km|[md]?L|ml|k?g|m²)(?!\w))"
)
_HEAPED = re.compile(r"(\b(?:\d{1,2}|a) (?:heaped|heaping|level|scant|rounded|generous) )(tb?sp)s?\b")
_INVERSE = re.compile(rf"(?<=\d )({UNIT}) ({UNIT})\^-1(?!\d)")  # m s⁻¹
_AT_LEAST = re.compile(rf"(?<=\d)\+ ?(?!in\b|pt\b|bar\b)({UNIT})(?![\w/²³^'·])(?:\.(?= [a-z]))?")  # 30+ km
_PERCENT = re.compile(rf"{_PLUS_MINUS}(?<![\w.,/:])({NUMBER})\s?%?(?:{TO}([-+]?)({NUMBER}))?\s?([%‰])")
# `"` after a number is written as ″ where it means inches and does not end a quotation.
_QUOTE = re.compile(r"\"|\n")
_FEET = re.compile(r"(?<![\w.,'])(\d{1,3})\s?'\s?-?\s?(\d{1,2}(?:\.\d)?)(?![\d/])(?:\s?(?:″|in\b))?")
_FEET_BEFORE = re.compile(r"(?<![\w.,'/])(\d{1,3})'[ -]?(?=\d{1,2}[ -]\d{1,2}/\d{1,2}(?:″| ?in\b))")
_FEET_ALONE = re.compile(r"(?<![\w.,'/])(\d{1,3}(?:,\d{3})?)'(?![\w'])")
_INCHES = re.compile(rf"(?<![\w.,'])({NUMBER})″")
_TWO_PRIMES = re.compile(r"(?<=\d)''(?!\w)")
_NOUN = re.compile(
    r" (?!(?:tall|wide|long|deep|high|thick|across|in|of|and|or|by|x|from|to|at|is|was|apart|away|off|on|up|down|above|"
    r"below|with|for|when|but|if|then|so|as|per|are|were|has|than|taller|shorter|longer|wider|higher|deeper|underwater|"
    r"each|more|less|while|because|before|after|between|over|under|into|through|ago|behind|square|total|later|outside|inside|overnight|today|yesterday|tonight|daily|hit|fell|will|can|now|too)\b)[A-Za-z]"
)
_PIECES = re.compile(rf"(?= [a-z]){_NOUN.pattern}")
_QUOTED = re.compile(r"(?<!\w)'(?=[A-Za-z]|\d{1,9} [a-z])(?:[^'\n]|(?<=\w)'(?=\w))*+$")
_OF_SIZE = re.compile(r"(\d)(?:\"|″)(?= by [\d/ -]{1,8}″)|(\d)'(?= by \d{1,3}')")
_ARTICLE = re.compile(r"\b(?:an?|the|this|that|his|her|our|my|your) $", re.IGNORECASE)
_KIND = re.compile(
    r" (?:jack|plug|mirror|telescope|film|"
    r"race|dash|sprint|run|hurdles|relay|freestyle|battery|card|drive|disk|SSD|RAM|bottle|bag|screen|ruler|fence|"
    r"bucket|jar|box|jug|pot|packet|carton|tub|tin|barrel|keg|line|bulb|cable|rope|radius|stick|track|walk|swim|pipe|"
    r"beam|monitor|lens|engine|motor|tank|V|[A-Z]\w{1,15} engine)s?\b"
    r"|(?:(?<=oz)|(?<=oz\.)) cans?\b"
)
_CROWD = re.compile(
    r"(?<=\d)m(?= (?:people|users|views|followers|copies|customers|subscribers|downloads|jobs|homes)\b)"
)
_BY = re.compile(
    r"(?:(?<=[\d\"'″])|(?<=\dm)|(?<=\d m)|(?<=\d(?:cm|mm|ft|in))|(?<=\d (?:cm|mm|ft|in))|(?<=\b(?:ft|in)\.))"
    r"( ?)[x×X] ?(?=\d)"
)
_TIMES = re.compile(
    rf"(?<![\w.,])(?<!= )(?<!minus )(?<!plus )(?<!\+ )(?:({NUMBER})(?:[x×] ?[-–] ?|[-–])(?=[\d.,]++[x×]))?"
    rf"((?:\d+[ -])?\d/\d{{1,2}}|{NUMBER})[x×](?!\w|\s?[-+=*/⋅]| (?:minus|over)\b)"
)
_DAY = re.compile(
    r"\b(?:on|by|until|till|due|since|before|after|from|ends?|starts?|ships?|arrives?|date|through"
    r"|week of|as of|(?:date|birthday|b-?day|anniversary|deadline|wedding|exam|"
    r"appointment|concert|party|meeting|event|festival|ceremony|interview) (?:is|was)|date:"
    r"|from \d{1,2}/\d{1,2} to)\s$",
    re.IGNORECASE,
)
_DAY_OR_SHARE = re.compile(
    r"\b(?:payable|paid|filed|effective|received|shipped|orders? placed|sent|scheduled|moved to|starting|ending) $",
    re.IGNORECASE,
)
_AT_TIME = re.compile(r" (?:@|at) \w+ (?:[a-z-]+ )?[AP] M\b")
_FRACTION = re.compile(
    r"(?<![\w.,/:])(?:(\d{1,5})(?:(?: and)? |[-–](?=\d{1,2}/(?:[234568]|10|12|16|32|64)(?!\d))))?"
    rf"(\d{{1,4}})/(\d{{1,4}})(?![\d/]|[.,]\d)(?:\s?({UNIT})(?![\w/²³^'·])(?:\.(?=,|\s[a-z]))?|(″))?"
)
# Ranges with a fraction: 1/2-3/4, 1-1 1/2, 1 1/2-2.
_FRACTION_RANGE = re.compile(
    r"(?<![\w.,/:-])(\d{1,3}|(?:\d{1,3}[ -])?\d{1,2}/\d{1,2})[-–](?=\d{1,3}[ -]\d{1,2}/\d{1,2}(?![\d/]))"
    r"|(?<![\w.,/:-])((?:\d{1,3}[ -])?\d{1,2}/\d{1,2})"
    r"(?: ?[-–] ?(?=\d{1,2}/\d{1,2}(?![\d/-]))|[-–](?=\d{1,3}(?![\w/-])))"
)
_INCH_FRACTIONS = (2, 4, 8, 16, 32, 64)
_AFTER_IN = re.compile(r" (?:the|a|an|this|that|my|his|her|our|their|all|class|total|favor|tests?|[A-Z0-9])\b")
_MARK = re.compile(r"(?<![\w.,/:])(\d{1,2}\.\d{1,2})/(?=(?:4|5|6|10|20|100)(?![\d/]|[.,]\d))")
_COMPASS = re.compile(r"(?<=\d[°'″])\s?([NSEW])\b(?!\.\w)")
_NTHS = re.compile(r"(?<![\w.,/:])(?:(\d{1,4})[ -])?(1?\d)/(\d{1,4})(?:th|rd|nd|st)s?\b")  # 3/10ths
_HYPHENATED_UNIT = re.compile(r"(?:(?<=/\d)|(?<=/\d\d))-(in|ft|lb|oz|yd|gal|mi|qt|pt|yr|hr|min|wk|mo)\b\.?(?= [a-z])")
_LENGTHS = re.compile(r"(?:(?<=\d″)\s?[-–]\s?(?=\d{1,3}['″])|(?<=\d')[-–](?=\d{1,3}'))")  # 5'10"-6'
_STONE = re.compile(r"(?<![\w.,])(\d{1,2}) ?st\.? (?=\d{1,2} ?lbs?\b)")
_DEGREES = re.compile(r"(?<=\d) ?deg\.? ?(?=[CF]\b)")
_PAIRS = {(24, 7), (20, 20), (7, 11), (7, 7), (11, 11)}
# A number of points out of the highest: after words such as "rated", before "stars", after a label.
_RATED = word_set(
    "rate rates rated rating ratings score scores scored scoring review reviews reviewed grade grades graded mark "
    "marks give gives gave giving got get gets getting earned answered verdict overall solid deserves star stars"
)
_PART_OF = re.compile(
    r"\b(?:page|slide|step|episode|question|level|lesson|round|part|stage|chapter|day|week|lap|task) $", re.IGNORECASE
)
_SCORE = re.compile(r"\b(?:score|result|grade|marks?|points|rating): ?$", re.IGNORECASE)
_WORD = re.compile("[A-Za-z]++|[.!?\n]")
_OUT_OF = re.compile(
    r" (?:from (?:three|deep|the field)|stars?|(?:star )?(?:reviews?|ratings?|scores?)|points|"
    r"on (?:the|my|his|her|a|our|their) (?:\w{1,20} )?(?:test|quiz|exam)|questions|correct)\b"
)
_LABELLED = re.compile(r"(?:^|\n|[:(]\s?|(?<![.!?] )\b[A-Z][a-z]+ |, [a-z]+ )$")
_LABEL_ENDS = re.compile(r"(?<!\s)\.?\s*+$|\.?\n|[,;)]| [-–—]|\. [A-Z]| (?:would|must|highly|definitely|recommend)")
# Ratings at the start of a line, "1/5: Awful", and in a list of ratings, "4/5 on taste, 2/5 on looks".
_HEADS_REVIEW = re.compile(r"(?:^|\n)$|/(?:5|10) (?:on|for|in) [\w ]{1,25}(?:, (?:and )?| and )$")
_REVIEW = re.compile(r":| [-–—] ?\w| (?:on|for|in) | [A-Z][a-z]")
_MAXIMA = (5, 6, 7, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
_METRE = re.compile(
    r" (?:time(?! (?:job|work|position|student|employee)s?\b)|beat|meter|metre|signature|rhythm|groove|waltz|blues|"
    r"shuffle)\b"
)


def _is_product(found: re.Match[str]) -> bool:
    after = text_after(found, 12)
    is_last = "×" in found.group() and re.match(r"\d{1,12}(?:\.\d{1,12})?\s{0,12}$", after)
    return bool(is_last) or "^" in after or "=" in found.string[found.start() : found.end() + 40]


def _fraction(found: re.Match[str]) -> str:
    whole, above, below, unit, rest = found[1], int(found[2]), int(found[3]), found[4], ""
    is_noun = _NOUN.match(text_after(found, 14)) is not None
    if found[5]:
        unit = "in"
    elif unit == "in" and (below not in _INCH_FRACTIONS or _AFTER_IN.match(text_after(found, 8))):
        unit, rest = None, found.group()[found.end(3) - found.start() :]
    if unit == "mpg":
        return f"{cardinal(above)} {cardinal(below)} miles per gallon"
    if whole and above >= below and found.group()[len(whole)] in "-–":
        return f"{written(whole)} to {written(found[2])} over {written(found[3])}{rest}"
    said = None if whole or unit else _score(found, above, below)
    if said is None and (below < 2 or below > 1000 or not 1 <= above <= max(19, below * (below in _INCH_FRACTIONS))):
        said = f"{written(whole) + ' ' if whole else ''}{written(found[2])} over {written(found[3])}"
        said += f" {plural(UNITS[unit])}" if unit else ""
    elif said is None:
        is_joined = not (whole or unit) and re.match("-[a-z]", text_after(found, 2)) is not None  # a 3/4-inch nail
        said = f"{cardinal(above)} {part_of(below) if above == 1 or is_joined else parts_of(below)}"
        if whole:
            said = f"{written(whole)} and {'a half' if (above, below) == (1, 2) else said}"
        if unit == "in" and is_noun:
            said = f"{said} inch"  # three-quarter inch plywood
        elif unit:
            said = f"{said} {plural(UNITS[unit])}" if whole else _part_of(said, UNITS[unit])
    return said + rest


def _score(found: re.Match[str], above: int, below: int) -> str | None:
    """Spell out notation that only looks like a fraction: 24/7, a date after a time word, a score out of 10 or 100."""
    before, after = text_before(found, 40), text_after(found, 24)
    if _PART_OF.search(before):
        return f"{cardinal(above)} of {cardinal(below)}"
    if (above, below) == (9, 11):
        return "nine eleven"
    is_day = _DAY_OR_SHARE.search(before) and not re.match(r" (?!and\b)[a-z]", after)
    is_day = (is_day or _AT_TIME.match(after)) and not above < below <= 10
    if 1 <= above <= 12 and 1 <= below <= 31 and (is_day or _DAY.search(before)):
        return f"{MONTHS[above - 1]} {ordinal(below)}"
    is_maximum = below in _MAXIMA and (above * 2 >= below or below in (5, 6, 10, 100))
    is_rated = bool(_OUT_OF.match(after) or (is_maximum and _is_rated(before)))
    is_rated |= below == 5 and above > 1 and bool(_LABELLED.search(before) and _LABEL_ENDS.match(after))
    is_rated |= below in (5, 10) and _HEADS_REVIEW.search(before) is not None and _REVIEW.match(after) is not None
    is_rated |= _SCORE.search(before) is not None
    if (above > below and below not in (5, 10)) or after.startswith(" of "):
        is_rated = False
    is_metre = 1 < above <= 12 and below in (2, 4, 8, 16) and _METRE.match(after) is not None
    is_metre |= after.startswith(" vision")
    if not is_rated and ((above, below) in _PAIRS or is_metre or above + below == 100):
        return f"{cardinal(above)} {cardinal(below)}"
    is_of_ten = below in (10, 100) or (below in _MAXIMA and below >= 20 and above * 2 >= below)
    is_of_ten = is_of_ten and above != 1 and (above <= below or below == 10) and not after.startswith(" of ")
    if (is_rated and below > 2) or is_of_ten or above == 0 < below or (above == below and above > 1):
        return f"{cardinal(above)} out of {cardinal(below)}"
    return None


def _is_rated(before: str) -> bool:
    """Return whether a word about rating is among the last words of the sentence."""
    last = _WORD.findall(before[-34:])
    ends = [number for number, each in enumerate(last) if not each.isalpha()]
    return not _RATED.isdisjoint(each.lower() for each in last[ends[-1] + 1 if ends else 0 :])


def _part_of(said: str, name: str) -> str:
    article = "an" if name[0] in "aeio" or name.startswith("hour") else "a"
    return f"half {article} {name}" if said == "one half" else f"{said} of {article} {name}"


def read_fractions(text: str) -> str:
    """Spell out fractions with their units, sizes such as 20 x 30, and points of the compass after degrees."""
    text = _mark_inches(text) if '"' in text else text
    text = _TWO_PRIMES.sub("″", text) if "''" in text else text
    if "x" in text or "×" in text or "X" in text:
        text = _BY.sub(lambda found: " times " if _is_product(found) else " by ", text)
        text = _TIMES.sub(_times, text)
    text = _COMPASS.sub(lambda found: f" {DIRECTIONS[found[1]].lower()}", text)
    if "″" in text or "'" in text:
        text = _LENGTHS.sub(" to ", _OF_SIZE.sub(r"\1\2", text))
        text = _FEET_BEFORE.sub(
            lambda found: f"{cardinal(int(found[1]))} {'foot' if found[1] == '1' else 'feet'} ", text
        )
    if "/" not in text:
        return text
    text = _HYPHENATED_UNIT.sub(lambda found: f"-{UNITS[found[1]]}", _NTHS.sub(_nths, text))
    text = _FRACTION_RANGE.sub(lambda found: f"{found[1] or found[2]} to ", text)
    return _FRACTION.sub(_fraction, _MARK.sub(r"\1 out of ", text))


def _times(found: re.Match[str]) -> str:
    if found[1] and float(found[1].replace(",", "")) > float(found[2].replace(",", "")):
        return found.group()  # 10-4x
    first = f"{written(found[1])} to " if found[1] else ""
    return f"{first}{found[2] if '/' in found[2] else written(found[2])} times"


def _nths(found: re.Match[str]) -> str:
    above, below = int(found[2]), int(found[3])
    if above < 1 or below < 2 or below > 1000:
        return found.group()
    said = f"{cardinal(above)} {part_of(below) if above == 1 else parts_of(below)}"
    return f"{written(found[1])} and {said}" if found[1] else said


def _mark_inches(text: str) -> str:
    """Write `"` after a number as ″ if it means inches: outside a quotation, or before its end."""
    marks = list(_QUOTE.finditer(text))
    parts, done, is_open = [], 0, False
    for number, found in enumerate(marks):
        at = found.start()
        if found.group() == "\n":
            is_open = False
            continue
        if text[at - 1 : at].isdecimal():
            following = marks[number + 1].start() if number + 1 < len(marks) else len(text)
            is_closed = text[following : following + 1] == '"' and not text[following - 1].isspace()
            is_closed = is_closed and following > at + 1 and not text[following + 1 : following + 2].isalnum()
            if not is_open or is_closed:
                parts += [text[done:at], "″"]
                done = at + 1
                continue
        is_open = not is_open
    return "".join([*parts, text[done:]])


def _is_exponent(found: re.Match[str], group: int) -> bool:
    return found.string[max(0, found.start(group) - 2) : found.start(group)].rstrip("+-").endswith("^")


def _measure(found: re.Match[str]) -> str:
    sign, number, scale, last, gap, unit, dot = found.groups()
    if (unit == "K" and gap != " ") or (unit == "bps" and len(number) > 2):
        return found.group()  # 20K is a count, 300 bps a rate
    if unit == "pts" and text_after(found, 4) == " of ":
        return found.group()  # might be pints
    if unit in _RISKY and gap in (" ", "\n") and not dot and not _is_length(found):
        return found.group()
    name = UNITS[unit]
    if _is_exponent(found, 2):
        return f"{sign or ''}{number} {plural(name)}"
    said = f"{scaled(number, scale)} to {written(last)}" if last else scaled(number, scale)
    is_kind = (
        gap == "-"
        or (unit in ("ft", "in") and _PIECES.match(text_after(found, 14)))
        or is_adjective(found)
        or _KIND.match(found.string, found.end())
    )
    is_one = is_kind or (not last and not scale and number == "1")
    stop = "." if dot and gap != "-" and is_final(found.string, found.start(), found.end(), "unit") else ""
    return f"{APPROXIMATE.get(sign, '')}{said} {name if is_one else plural(name)}{stop}"


def _is_length(found: re.Match[str]) -> bool:
    """Return whether "in" means inches: it follows feet, or precedes x, by, or a word such as tall or wide."""
    before = text_before(found, 6)
    after = text_after(found, 6)
    is_followed = re.match(r" (?:x|by|tall|long|wide|high|deep)\b", after) is not None
    return found[6] == "in" and (before.endswith(("feet ", "foot ", "ft ", "ft. ")) or is_followed)


def _rate(found: re.Match[str]) -> str:
    sign, first, last, unit, per, other = found.groups()
    number = last if _is_exponent(found, 3) else f"{written(first)} to {written(last)}" if first else written(last)
    name = UNITS[unit] if number == "one" else plural(UNITS[unit])
    others = f" per {UNITS.get(other, other)}" if other else ""  # mg/kg/day
    return f"{APPROXIMATE.get(sign, '')}{number} {name} per {UNITS.get(per, per)}{others}"


def _percent(found: re.Match[str]) -> str:
    sign, number, last_sign, last, mark = found.groups()
    said = f"{written(number)} to {APPROXIMATE.get(last_sign, '')}{written(last)}" if last else written(number)
    return f"{APPROXIMATE.get(sign, '')}{said} {'percent' if mark == '%' else 'per mille'}"


def _inches(found: re.Match[str]) -> str:
    is_one = found[1] == "1" or _is_attribute(text_after(found, 14))
    return f"{written(found[1])} {'inch' if is_one else 'inches'}"


def _feet_alone(found: re.Match[str]) -> str:
    if _QUOTED.search(text_before(found, 100)):
        return found.group()  # the mark closes a quotation
    if _is_angle(found):
        return f"{written(found[1])} {'minute' if found[1] == '1' else 'minutes'}"
    is_one = found[1] == "1" or _is_attribute(text_after(found, 14))
    return f"{written(found[1])} {'foot' if is_one else 'feet'}"


def _is_attribute(after: str) -> bool:
    """Return whether a length belongs to the noun or the adjective after it: a 6' pole, a 6'-tall fence."""
    return _NOUN.match(after) is not None or re.match("-[a-z]", after) is not None


def _is_angle(found: re.Match[str]) -> bool:
    return text_before(found, 9).rstrip().endswith(("°", "degrees"))


def _feet(found: re.Match[str]) -> str:
    names = ("minute", "second") if float(found[2]) >= 12 or _is_angle(found) else ("foot", "inch")
    large, small = (name if number == "1" else plural(name) for number, name in zip(found.groups(), names, strict=True))
    is_noun = names[0] == "foot" and _ARTICLE.search(text_before(found, 6)) and _is_attribute(text_after(found, 14))
    if is_noun:
        large, small = names  # a six foot two inch guard
    return f"{cardinal(int(found[1]))} {large} {written(found[2])} {small}"


def read_measures(text: str) -> str:
    if "%" in text or "‰" in text:
        text = _PERCENT.sub(_percent, text)
    if "'" in text:
        text = _FEET_ALONE.sub(_feet_alone, _FEET.sub(_feet, text))
    text = _AT_LEAST.sub(lambda found: f" plus {plural(UNITS[found[1]])}", text) if "+" in text else text
    text = re.sub(r"(?<![\w.])\.(?=\d\d[ -](?:calib(?:er|re)|revolver|pistol|rifle|handgun|Special|Colt)\b)", "", text)
    text = _HEAPED.sub(
        lambda found: f"{found[1]}{UNITS[found[2]]}{'s' * (found[1].split()[0] not in ('1', 'a'))}", text
    )
    text = _PER_NUMBER.sub(r"\1 per ", _INVERSE.sub(r"\1/\2", text))
    text = _CROWD.sub(" million", _DEGREES.sub("°", _STONE.sub(r"\1 stone ", text)))
    text = _MEASURE.sub(_measure, _RATE.sub(_rate, text))
    return _INCHES.sub(_inches, text).replace("″", '"') if "″" in text else text
