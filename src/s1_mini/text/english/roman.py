"""Roman numerals: of rulers, chapters, wars and centuries; an I that is a person stays one."""

from __future__ import annotations

import re

from s1_mini.text.english.words import cardinal, ordinal

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_VALID = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_RULERS = (
    "Louis|Henry|Elizabeth|Charles|George|James|Edward|Richard|William|John|Paul|Pius|Benedict|Francis|Leo|Gregory|"
    "Napoleon|Catherine|Peter|Nicholas|Alexander|Philip|Ferdinand|Frederick|Wilhelm|Ivan|Mary|Ramses|Ramesses|Ptolemy|"
    "Xerxes|Darius|Cyrus|Otto|Urban|Innocent|Clement|Boniface|Robert|Margaret|Margrethe|Christian|Gustav|Olaf|Haakon|"
    "Harald|Carl|Karl|Victor|Emmanuel|Umberto|Carlos|Alfonso|Felipe|Pedro|Mehmed|Murad|Selim|Suleiman|Stephen|Albert|"
    "Leopold|Baldwin|Joseph|Maximilian|Rudolf|Rudolph|Sigismund|Constantine|Theodosius|Justinian|Amenhotep|Thutmose|Seti"
)
_NUMBERED = (
    "Chapter|Part|Volume|Book|Act|Scene|Section|Article|Appendix|Phase|Type|Level|Grade|Class|Title|War|Bowl|Episode|"
    "Stage|Round|Vol|Figure|Table|Division|Group|Schedule|Unit|Step|Canto|Psalm|Sonata|Symphony|Mark|Apollo|Olympiad"
)
_RULER = re.compile(rf"\b((?:{_RULERS})) ([IVX]{{1,6}})\b(?!'(?!s\b)|\.\w)")
_PART = re.compile(rf"\b((?:{_NUMBERED})s?) ([IVXLC]{{1,9}})\b(?!'\w|\.[A-Za-z])", re.IGNORECASE)
_PERSON = re.compile(r" (?:am|was|have|had|think|will|would|do|did|see)\b")
_CENTURY = re.compile(r"\b([IVX]{1,6})(?:th|st)?(?=[- ][Cc]entur)|(?<=\b[Tt]he )([IVX]{2,6})(?:th|st)?\b(?! [a-z])")
_AFTER_NAME = re.compile(r"(?<=[a-z] )([IVX]{2,6})\b(?!['.]\w)")
_STRAY = re.compile(r"(?<![\w.'&-])(?!XXX\b)(II|[IVX]{3,6}|(?<!.)[IVX]{2}(?!.))\b(?![&-])")
_SPAN = re.compile(r"(?<![\w.'&-])([IVX]{1,6})\s?[-–]\s?([IVX]{2,6})\b(?![&'-])")
_YEAR = re.compile(r"(?<![\w.])(M{1,3}[CDLXVI]{2,12})(?![\w.])")


def _value(letters: str) -> int | None:
    if not _VALID.fullmatch(letters):
        return None
    values = [_VALUES[letter] for letter in letters]
    return sum(-each if each < after else each for each, after in zip(values, [*values[1:], 0], strict=True))


def _ruler(found: re.Match[str]) -> str:
    value = _value(found[2])
    if value is None or (found[2] == "I" and _PERSON.match(_after(found))):
        return found.group()
    return f"{found[1]} the {ordinal(value)}"


def _part(found: re.Match[str]) -> str:
    value = _value(found[2])
    if value is None or (found[1][0].islower() and found[2] in "IC"):  # the part I liked
        return found.group()
    return f"{found[1]} {cardinal(value)}"


def _after(found: re.Match[str]) -> str:
    return found.string[found.end() : found.end() + 10]


def _century(found: re.Match[str]) -> str:
    value = _value(found[1] or found[2])
    return found.group() if value is None else ordinal(value)


def _after_name(found: re.Match[str]) -> str:
    """Read what follows a capitalised name: Rocky III."""
    before = found.string[max(0, found.start() - 30) : found.start()].split()
    value = _value(found[1])
    return cardinal(value) if value is not None and before and before[-1][0].isupper() else found.group()


def _span(found: re.Match[str]) -> str:
    first, last = _value(found[1]), _value(found[2])
    return found.group() if first is None or last is None else f"{cardinal(first)} to {cardinal(last)}"


def _stray(found: re.Match[str]) -> str:
    value = _value(found[1])
    return found.group() if value is None else cardinal(value)


def _year(found: re.Match[str]) -> str:
    value = _value(found[1])
    return found.group() if value is None else str(value)


def read_roman(text: str) -> str:
    """Say Roman numerals where they certainly are some."""
    text = re.sub(r"\bWW(?=I{1,2}\b|[12]\b)", "World War ", text)
    if not re.search(r"\b[IVXLCM]+\b", text):
        return text
    text = _SPAN.sub(_span, text)
    text = _PART.sub(_part, _RULER.sub(_ruler, text))
    text = _CENTURY.sub(_century, text)
    text = _STRAY.sub(_stray, _AFTER_NAME.sub(_after_name, text))
    return _YEAR.sub(_year, text)
