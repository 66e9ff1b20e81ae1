"""Numbers that name and do not count: telephones, rooms, versions, addresses, and what mixes letters with digits."""

from __future__ import annotations

import re

from s1_mini.text.english.lexicon import SAID
from s1_mini.text.english.words import cardinal, digits, paired, written

_PHONE = re.compile(
    r"(?<![\w.,/-])(?:\+?\d{1,3}[ .-])?(?:\(\d{3}\)[ .-]?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"
    r"|(?<![\w.,/])\+\d[\d ().-]{6,20}\d(?!\w)"
    r"|(?<![\w.,/-])\d{3}-\d{4}(?![\w-])|(?<![\w.,/-])\d{3}-\d{2}-\d{4}(?![\w-])"
    r"|(?<![\w.,/-])\d{4}(?:[ -]\d{4}){3}(?![\w-])"
    r"|(?<![\w.,/-])0\d{2,4}(?: \d{3,4}){1,2}(?![\w-])|(?<![\w.,/-])0\d{3,4} \d{6}(?![\w-])"
)
_DIALLED = re.compile(
    r"\b((?:call|dial|ring|phone|code|pin|zip|extension|password|ends?|ending)"
    r"(?: is| on| in| number)?:?) (\d{3,12})\b(?![.,]\d)",
    re.IGNORECASE,
)
_ZIP = re.compile(r"(?<=[a-z] )(\d{5})(?:-(\d{4}))?(?=$|\n|[.,;)]|$)|(?<=[A-Z]{2} )(\d{5})(?:-(\d{4}))?\b")
_ADDRESS = re.compile(r"(?<![\w.,:/$£€-])(\d{1,2}:\d\d|\d{1,3}(?:\.\d{1,3}){3})(:\d{2,5})?(?![\w.]*\d)")
_VERSION = re.compile(
    r"(?<![\w.])(?<!-(?=V))[vV](\d{1,4}(?:\.\d{1,4}){0,4})\b|(?<![\w.,])(?!\d{1,3}(?:\.\d{3}){2,}(?![\w.]))(\d{1,4}(?:\.\d{1,4}){2,4})(?![\w.]*\d)|"
    r"(?<=\b)([Vv]ersion|Python|Java|iOS|Android|Windows|macOS|Ubuntu|Node|Release|release|PyTorch|CUDA|Chrome|Firefox)"
    r" (\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.]*\d)"
)
_PLACE = re.compile(
    r"\b(rooms?|suite|apartment|flight|route|highway|interstate|gate|bus|train|channel|area|boeing|airbus|locker|cell|"
    r"ward|model|extension|apt|seat|row|flat|unit|platform) #?(\d{1,4})([A-Z]?)(?![\w%°]|[.,:]\d| \d{1,3}/\d)",
    re.IGNORECASE,
)
_STREETS = "Street|Avenue|Road|Drive|Lane|Boulevard|Court|Place|Square|Highway|Parkway|Terrace|Way|Close|Crescent"
_HOUSE = re.compile(
    rf"(?<![\w.,:/$£€-])(\d{{1,5}})([A-Z]?) "
    rf"(?=(?:(?:[A-Z]\w{{0,20}}|\d{{1,3}}(?:st|nd|rd|th))\.? ){{1,4}}(?:{_STREETS})\b)"
)
_MIXED = re.compile(
    r"(?<![\w.,'$£€-])(?=[A-Za-z]{0,12}-?\d)(?=\d{0,12}-?[A-Za-z]|[A-Za-z]{1,12}-?\d)"
    r"[A-Za-z0-9]++(?:-[A-Za-z0-9]++){0,4}(?!\w)"
)
_SPAN = re.compile(r"(?<![\w.,-])([A-Z]{1,3})(\d{1,4})[-–](?=\1(\d{1,4})(?![\w-]))")
_VOWEL = re.compile("[AEIOUYaeiouy]")
_ROWS = re.compile(r"(?<=\b[A-Z])–(?=[A-Z]\b)")  # seats D–F
_STANDARD = re.compile(r"(?<![\w.])([A-Z])\.(\d{3})(?![\w.]*\d)")  # H.264
_GLUED_VERSION = re.compile(r"(?<=[A-Z]{3})v(?=\d)")  # YOLOv8
_RUN = re.compile(r"[A-Za-z]++|\d++")
_MEASURED = re.compile(r"\d+(?:st|nd|rd|th|s|x|k|K|M|B|bn|tn|mn)|\d+(?:-[a-z]{2,}\d*)+|\d+(?:-\d+)*", re.IGNORECASE)


def _phone(found: re.Match[str]) -> str:
    said = ["eight hundred" if group == "800" else digits(group) for group in re.findall(r"\d+", found.group())]
    return ("plus " if found.group().startswith("+") else "") + ", ".join(said)


def read_phones(text: str) -> str:
    """Spell out telephone, card and zip numbers, and what is dialled, digit by digit."""
    text = _PHONE.sub(_phone, text)
    text = _DIALLED.sub(lambda found: f"{found[1]} {digits(found[2])}", text)
    return _ZIP.sub(lambda found: ", ".join(digits(part) for part in found.groups() if part), text)


def _address(found: re.Match[str]) -> str:
    said = " dot ".join(digits(part) for part in found[1].split("."))
    return said + (f" colon {run(found[2][1:])}" if found[2] else "")


def _version(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[4]
    said = " point ".join(cardinal(int(part)) for part in number.split("."))
    return f"version {said}" if found[1] else f"{found[3]} {said}" if found[3] else said


def read_labels(text: str) -> str:
    """Spell out addresses of the net, versions, rooms, flights and houses."""
    text = _ADDRESS.sub(lambda found: found.group() if ":" in found[1] else _address(found), text)
    text = _ROWS.sub(" to ", text)
    text = _STANDARD.sub(lambda found: f"{found[1]} dot {run(found[2])}", text)
    text = _VERSION.sub(_version, _GLUED_VERSION.sub(" v", text))
    text = _PLACE.sub(lambda found: f"{found[1]} {run(found[2])}{' ' * bool(found[3])}{found[3]}", text)
    return _HOUSE.sub(lambda found: f"{run(found[1])}{' ' * bool(found[2])}{found[2]} ", text)


def run(number: str) -> str:
    """Spell out digits that name something: in pairs up to four, one by one beyond or after a zero."""
    is_short = len(number) <= 4 and not (len(number) > 1 and number[0] == "0")
    return paired(int(number)) if is_short else digits(number)


def _is_word(part: str) -> bool:
    return _VOWEL.search(part) is not None and (part.istitle() or (len(part) > 2 and not part.isupper()))


def _mixed(found: re.Match[str]) -> str:
    token = found.group()
    if _MEASURED.fullmatch(token):
        return token
    said = []
    for part in _RUN.findall(token):
        if part.isdecimal():
            said.append(written(part) if len(part) <= 2 else run(part))
        elif part.upper() in SAID or len(part) == 1 or _is_word(part):
            said.append(part)
        else:
            said.append(" ".join(part))
    return " ".join(said)


def _span(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]} to " if int(found[2]) < int(found[3]) else found.group()


def read_identifiers(text: str) -> str:
    """Spell out mixed letters and digits: A4, COVID-19, H2O."""
    return _MIXED.sub(_mixed, _SPAN.sub(_span, text))
