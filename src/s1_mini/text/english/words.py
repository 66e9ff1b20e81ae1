"""Numbers as English says them; the words of those below a thousand are CLDR's (`s1_mini.text.numbers`)."""

from __future__ import annotations

from functools import cache

from s1_mini.text.numbers import spell
from s1_mini.text.tables import words

# A number as written: 1,234.5 or 12 or .5; its signs are matched by whoever uses it.
NUMBER = r"(?:\d{1,3}(?:,\d{3})++(?!\d)(?:\.\d++)?|\d++(?:\.\d++)?|\.\d++)"
MAX_SAID = 36  # digits of a number that has a name; a longer one is said digit by digit

_SCALES = (
    "",
    *words(
        "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
    ),
)


@cache
def _below_thousand(number: int) -> str:
    return spell(number, "en")


@cache
def _ordinal_below_thousand(number: int) -> str:
    return spell(number, "en", is_ordinal=True)


def cardinal(number: int) -> str:
    """Spell out a whole number, at least 0."""
    if number < 1000:
        return _below_thousand(number)
    if number >= 10**MAX_SAID:
        return digits(str(number))
    parts = []
    for scale in _SCALES:
        number, group = divmod(number, 1000)
        if group:
            parts.append(f"{_below_thousand(group)} {scale}".strip())
        if not number:
            break
    return " ".join(reversed(parts))


def ordinal(number: int) -> str:
    """Spell out a whole number above 0 as a place in an order."""
    before, last = divmod(number, 1000)
    if not before:
        return _ordinal_below_thousand(last)
    return f"{cardinal(before * 1000)} {_ordinal_below_thousand(last)}" if last else f"{cardinal(number)}th"


def digits(text: str) -> str:
    """Spell out the digits of a text one by one, and nothing else of it."""
    return " ".join(_below_thousand(int(each)) for each in text if each.isdecimal())


def written(text: str) -> str:
    """Spell out a number as `NUMBER` matches it; 007 and what is too long to be a count digit by digit."""
    whole, point, decimals = text.replace(",", "").partition(".")
    is_code = len(whole) > 1 and whole[0] == "0"
    is_code = is_code or (len(whole) >= 10 and "," not in text and not whole.endswith("000000"))
    said = digits(whole) if is_code or len(whole) > MAX_SAID else cardinal(int(whole)) if whole else ""
    return f"{said} point {digits(decimals)}".strip() if point else said


def paired(number: int) -> str:
    """Spell out a number of up to four digits as years and rooms are said: nineteen eighty-four, three oh four."""
    if number < 100 or number > 9999 or 2000 <= number < 2010 or number % 1000 == 0:
        return cardinal(number)
    before, last = divmod(number, 100)
    if not last:
        return f"{_below_thousand(before)} hundred"
    return f"{_below_thousand(before)} {'oh ' if last < 10 else ''}{_below_thousand(last)}"


def parts_of(number: int) -> str:
    """Spell out a denominator above 1, in the plural: halves, thirds, quarters."""
    return {2: "halves", 4: "quarters"}.get(number) or part_of(number) + "s"


def part_of(number: int) -> str:
    """Spell out a denominator above 1, in the singular."""
    return {2: "half", 4: "quarter"}.get(number) or ordinal(number).removeprefix("one ")


def decade(number: int) -> str:
    """Spell out the years from `number` on, which is a multiple of ten: nineties, nineteen nineties, two thousands."""
    before, last = divmod(number, 100)
    tens = f"{_below_thousand(last)}s" if last == 10 else f"{_below_thousand(last)[:-1]}ies"
    if not before:
        return tens
    if last:
        return f"{_below_thousand(before)} {tens}"
    return "two thousands" if number == 2000 else f"{_below_thousand(before)} hundreds"
