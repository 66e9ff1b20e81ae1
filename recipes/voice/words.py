"""Count the word errors of a transcript, regardless of spelling.

A reference is a sequence of places, each with one or more spellings ("1984": "nineteen eighty four", "one thousand
nine hundred eighty four", …). The edit distance picks, for each place, the spelling closest to the hypothesis.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from s1_mini.text.english import numerals as english

Words = tuple[str, ...]

_CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent")}
_ABBREVIATIONS = {
    "mr": "mister", "mrs": "missus", "dr": "doctor", "prof": "professor", "st": "saint street", "vs": "versus",
    "etc": "etcetera", "jr": "junior", "sr": "senior", "mt": "mount", "ave": "avenue", "rd": "road",
    "jan": "january", "feb": "february", "mar": "march", "apr": "april", "jun": "june", "jul": "july",
    "aug": "august", "sep": "september", "sept": "september", "oct": "october", "nov": "november", "dec": "december",
}  # fmt: skip
# Words that the recogniser writes in several ways.
_VARIANTS: dict[str, tuple[Words, ...]] = {
    "goodbye": (("good", "bye"),),
    "okay": (("ok",), ("o", "k")),
    "ok": (("okay",), ("o", "k")),
    "gray": (("grey",),),
    "grey": (("gray",),),
    "alright": (("all", "right"),),
    "mister": (("mr",),),
}

_PLACE = re.compile(
    r"""
    (?P<money>[$£€]\s?\d+(?:,\d{3})*(?:\.\d\d)?(?!\d))
    | (?P<time>\d{1,2}:\d\d(?!\d))
    | (?P<ordinal>\d+(?:,\d{3})*(?:st|nd|rd|th)\b)
    | (?P<decade>\d{3}0s\b)
    | (?P<decimal>\d+(?:,\d{3})*\.\d+)
    | (?P<number>\d+(?:,\d{3})+|\d+)
    | (?P<half_of_day>(?:(?<=\d)|(?<=\d\s))[ap]\.?m\b\.?)
    | (?P<count>no\.(?=\s*\d))
    | (?P<initials>(?:[a-z]\.){2,})
    | (?P<percent>%)
    | (?P<plus>&)
    | (?P<word>[a-z]+)
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Comparison:
    """Distance of a hypothesis from a text, in counts, so that they can be summed over texts."""

    word_errors: int
    words: int


def compare(text: str, hypothesis: str) -> Comparison:
    """Count the word errors (substitutions, deletions, insertions) of `hypothesis` against `text`."""
    errors, spelling = _align(places(text), normalise(hypothesis))
    return Comparison(errors, len(spelling))


def normalise(text: str) -> Words:
    """Return the words of a hypothesis: lower case, no accents, no punctuation; "it's" and "its" are one word."""
    return tuple(re.findall(r"[a-z0-9]+", _plain(text).lower()))


def places(text: str) -> list[list[Words]]:
    """Return the accepted spellings of `text`, place by place; the first spelling of each place is the plainest."""
    return [_spellings(str(match.lastgroup), match[0]) for match in _PLACE.finditer(_plain(text))]


def cardinal(number: int) -> Words:
    """Return the words of a whole number, without "and"."""
    return tuple(english.cardinal(number).replace("-", " ").split())


def ordinal(number: int) -> Words:
    """Return the words of an ordinal number: "twenty first"."""
    return tuple(english.ordinal(number).replace("-", " ").split())


def _plain(text: str) -> str:
    """Drop accents and apostrophes."""
    letters = unicodedata.normalize("NFKD", text)
    return re.sub(r"['’ʼ]", "", "".join(c for c in letters if not unicodedata.combining(c)))


def _align(places: Sequence[Sequence[Words]], heard: Words) -> tuple[int, Words]:
    """Fewest errors over all spellings, and the spelling that has them."""
    # row[j]: errors and chosen spelling of the places so far against the first j words heard
    row: list[tuple[int, Words]] = [(j, ()) for j in range(len(heard) + 1)]
    for spellings in places:
        ends = []
        for spelling in spellings:
            end = row
            for word in spelling:
                end = _advance(end, word, heard)
            ends.append(end)
        row = [min(column, key=lambda cell: cell[0]) for column in zip(*ends, strict=True)]
        # Insertions after this place may be cheaper with a different spelling.
        for j in range(1, len(row)):
            row[j] = min(row[j], (row[j - 1][0] + 1, row[j - 1][1]), key=lambda cell: cell[0])
    return row[-1]


def _advance(row: list[tuple[int, Words]], word: str, heard: Words) -> list[tuple[int, Words]]:
    new = [(row[0][0] + 1, (*row[0][1], word))]
    for j, other in enumerate(heard, start=1):
        replaced = (row[j - 1][0] + (word != other), (*row[j - 1][1], word))
        left_out = (row[j][0] + 1, (*row[j][1], word))
        added = (new[j - 1][0] + 1, new[j - 1][1])
        new.append(min(replaced, left_out, added, key=lambda cell: cell[0]))
    return new


def _spellings(kind: str, found: str) -> list[Words]:
    """Spell one place in all accepted ways, without repetition."""
    spell = {
        "money": _money,
        "time": _time,
        "ordinal": lambda s: iter([ordinal(_int(s[:-2]))]),
        "decade": _decade,
        "decimal": _decimal,
        "number": _number,
        "half_of_day": lambda s: iter([(s[0], "m"), (s[0] + "m",)]),
        "count": lambda _: iter([("number",), ("no",)]),
        "initials": lambda s: iter([tuple(s.replace(".", "")), (s.replace(".", ""),)]),
        "percent": lambda _: iter([("percent",), ("per", "cent")]),
        "plus": lambda _: iter([("and",)]),
        "word": _word,
    }[kind]
    return list(dict.fromkeys(tuple(word.lower() for word in spelling) for spelling in spell(found)))


def _word(word: str) -> Iterator[Words]:
    lower = word.lower()
    yield (lower,)
    yield from ((full,) for full in _ABBREVIATIONS.get(lower, "").split())
    yield from _VARIANTS.get(lower, ())
    if word.isupper() and 1 < len(word) < 6:  # BBC
        yield tuple(lower)


def _number(digits: str) -> Iterator[Words]:
    yield cardinal(_int(digits))
    if "," in digits:
        return
    if len(digits) < 3 and 1 <= int(digits) <= 31:  # a day: "May 21"
        yield ordinal(int(digits))
    each = tuple(english.cardinal(int(digit)) for digit in digits)
    if len(digits) == 4 and digits[0] != "0":  # a year, or a house number
        high, low = int(digits[:2]), int(digits[2:])
        yield (*cardinal(high), *(cardinal(low) if low > 9 else ("hundred",) if low == 0 else ("oh", *cardinal(low))))
    if len(digits) == 3 and digits[1] != "0":
        yield (each[0], *cardinal(int(digits[1:])))
    if len(digits) > 2 or digits[0] == "0":
        yield each
        yield tuple("oh" if word == "zero" else word for word in each)


def _decade(digits: str) -> Iterator[Words]:
    for *first, last in _number(digits[:-1]):
        yield (*first, last[:-1] + "ies" if last.endswith("y") else last + "s")


def _decimal(digits: str) -> Iterator[Words]:
    whole, _, part = digits.partition(".")
    yield (*cardinal(_int(whole)), "point", *(english.cardinal(int(digit)) for digit in part))
    yield (*cardinal(_int(whole)), "point", *cardinal(int(part)))


def _time(digits: str) -> Iterator[Words]:
    hour, minute = (int(part) for part in digits.split(":"))
    if minute == 0:
        yield from ((*cardinal(hour), *after) for after in ((), ("oclock",), ("hundred",)))
    elif minute < 10:
        yield (*cardinal(hour), "oh", *cardinal(minute))
    else:
        yield (*cardinal(hour), *cardinal(minute))


def _money(found: str) -> Iterator[Words]:
    large, small = _CURRENCIES[found[0]]
    whole, _, part = found[1:].strip().partition(".")
    amount, cents = cardinal(_int(whole)), int(part or 0)
    named = (*amount, large if _int(whole) == 1 else large + "s")
    if not cents:
        yield named
        return
    coins = (*cardinal(cents), small if cents == 1 else "pence" if small == "penny" else small + "s")
    yield (*named, *coins)
    yield (*named, "and", *coins)
    yield (*named, *cardinal(cents))
    yield (*amount, *cardinal(cents))
    yield (*amount, "point", *(english.cardinal(int(digit)) for digit in part))


def _int(digits: str) -> int:
    return int(digits.replace(",", ""))
