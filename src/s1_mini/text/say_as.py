"""Readings of SSML's `<say-as>`, as words where the language's rules are known."""

from __future__ import annotations

import re

from s1_mini.text.english.dates import MONTHS
from s1_mini.text.numbers import MAX_DIGITS, find_rules, spell

SPELT = frozenset({"characters", "spell-out", "verbatim"})
_NUMBER = re.compile(r"([-+−]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)?", re.IGNORECASE)


def say_as(text: str, kind: str, form: str, language: str | None) -> str:
    """Return the reading of `text` with interpret-as `kind` and format `form`; text of unknown kinds is unchanged.

    `language` is the language of the text normalization; without one, digits stay digits.
    """
    text, tag = " ".join(text.split()), find_rules(language or "")
    said: str | None = None
    if kind in SPELT or kind == "digits":
        said = " ".join(_digit(each, tag) for each in (text.upper() if kind in SPELT else text) if not each.isspace())
    elif kind == "telephone":
        said = _telephone(text, tag)
    elif kind in ("number", "cardinal") and tag and (found := _NUMBER.fullmatch(text)):
        said = _cardinal(found, tag)
    elif kind == "ordinal" and tag and (found := _ORDINAL.fullmatch(text)) and len(found[1]) <= MAX_DIGITS:
        said = spell(int(found[1]), tag, is_ordinal=True)
    elif kind == "date" and _is_english(tag):
        said = _date(text, form)
    return said or text


def _telephone(text: str, tag: str) -> str:
    groups = [" ".join(_digit(each, tag) for each in group) for group in re.findall(r"\d+", text)]
    return ("plus " if groups and text.startswith("+") and _is_english(tag) else "") + ", ".join(groups)


def _is_english(tag: str) -> bool:
    return tag.partition("_")[0] == "en"


def _digit(character: str, tag: str) -> str:
    return spell(int(character), tag) if tag and character.isdecimal() else character


def _cardinal(found: re.Match[str], tag: str) -> str:
    sign, whole, decimals = found[1], found[2].replace(",", ""), found[3]
    if len(whole) > MAX_DIGITS or ((sign or decimals) and not _is_english(tag)):
        return found.group()  # the normalizer spells it out
    said = spell(int(whole), tag)
    said += f" point {' '.join(_digit(each, tag) for each in decimals)}" if decimals else ""
    return f"minus {said}" if sign in ("-", "−") else said


def _date(text: str, form: str) -> str:
    """Rewrite a numeric date in the order of `form` (such as mdy) so that the normalizer reads it as a date."""
    parts = re.findall(r"\d+", text)
    if form == "yyyymmdd" and len(parts) == 1 and len(parts[0]) == 8:
        form, parts = "ymd", [parts[0][:4], parts[0][4:6], parts[0][6:]]
    if len(form) != len(parts) or set(form) - set("ymd") or len(set(form)) != len(form) or "m" not in form:
        return text
    values = {letter: int(part) for letter, part in zip(form, parts, strict=True) if len(part) <= 4}
    if not (1 <= values.get("m", 0) <= 12 and 1 <= values.get("d", 1) <= 31):
        return text
    day = f" {values['d']}" if "d" in values else ""
    if "y" not in values:
        return MONTHS[values["m"] - 1] + day
    year = values["y"] + (0 if values["y"] > 99 else 2000 if values["y"] < 50 else 1900)
    return f"{MONTHS[values['m'] - 1]}{day}{',' if day else ''} {year}"
