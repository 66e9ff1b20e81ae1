"""Whole numbers as words, by Unicode's rules for each language (CLDR, through unicode-rbnf)."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicode_rbnf import RbnfEngine

MAX_DIGITS = 15  # the rules of some languages do not go much further


@cache
def languages() -> frozenset[str]:
    """Return the tags of all languages whose numbers can be spelt out."""
    from unicode_rbnf import RbnfEngine

    return frozenset(RbnfEngine.get_supported_languages())


def find_rules(language: str) -> str:
    """Return the tag, one of `languages()`, whose rules apply to a language; empty if there are none."""
    first, _, rest = language.replace("-", "_").partition("_")
    return next((tag for tag in (f"{first.lower()}_{rest}", first.lower()) if tag in languages()), "")


@lru_cache(maxsize=16)
def _engine(language: str) -> RbnfEngine:
    from unicode_rbnf import RbnfEngine

    return RbnfEngine.for_language(language)


@lru_cache(maxsize=4096)
def spell(number: int, language: str, *, is_ordinal: bool = False) -> str:
    """Spell out a number of up to `MAX_DIGITS` digits; `language` is one of `languages()`."""
    from unicode_rbnf import FormatPurpose
    from unicode_rbnf.engine import RbnfError

    purpose = FormatPurpose.ORDINAL if is_ordinal else FormatPurpose.CARDINAL
    try:
        return str(_engine(language).format_number(number, purpose).text).replace("\xad", "")
    except RbnfError:  # the rules end, in some languages at a billion
        return str(number) if number < 10 else " ".join(spell(int(digit), language) for digit in str(number))


@lru_cache(maxsize=4096)
def forms(number: int, language: str, use: str, gender: str = "") -> frozenset[str]:
    """Return all singular forms of a number as CARDINAL, ORDINAL or YEAR; `gender` selects the forms of one gender."""
    from unicode_rbnf import FormatPurpose

    found = _engine(language).format_number(number, FormatPurpose[use]).text_by_ruleset
    others = ("financial", "days", "plural")
    return frozenset(text for name, text in found.items() if gender in name and not any(map(name.count, others)))
