"""Numbers that only count, and what stands between two of them."""

from __future__ import annotations

import re

from s1_mini.text.english.words import NUMBER, digits, ordinal, written
from s1_mini.text.tables import table

_ORDINAL = re.compile(r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b")
_SPACED = re.compile(r"(?<![\d.,] )(?<![\w.,-])\d{1,3}(?: \d{3})++(?![\w.,-]*\d)")
_APOSTROPHES = re.compile(r"(?<![\w.,])\d{1,3}(?:'\d{3})++(?!\d)")
_DOTS = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.])")
_CHAIN = re.compile(r"(?<![\w.,-])\d{1,8}(?:-\d{1,8}){2,8}(?![\w-]|[.,]\d)")
_RANGE = re.compile(rf"(?<![\w.,-])({NUMBER})(\s?)(?:-|–|—)(\s?)(?=({NUMBER})(?![\w-]))")
_SCALED = re.compile(rf"(?<![\w.,])(?<![A-Za-z\d]-)({NUMBER})(?:\s?(?!K))?(k|K|M|B|bn|mn|tn)(?![\w'-])")
_SCALES = table("k=thousand, m=million, mn=million, b=billion, bn=billion, tn=trillion")
_POWER = re.compile(rf"(?<=[\w)])\s?\^\s?([-+]?)({NUMBER})")
_SIGN = re.compile(r"(?<![\w)\]%°])([-+±~≈])\s?(?=\.?\d)")
_SIGNS = {"-": "minus ", "+": "plus ", "±": "plus or minus ", "~": "about ", "≈": "about "}
_NUMBER = re.compile(rf"(?<![.,\d]){NUMBER}|\d++")


def _range(found: re.Match[str]) -> str:
    """Say `to` between two numbers, and `minus` in a sum."""
    is_spaced = bool(found[2] and found[3]) and "-" in found.group()
    falls = float(found[4].replace(",", "")) < float(found[1].replace(",", ""))
    if found[1] == found[4] == "50":
        return f"{found[1]} "  # fifty-fifty
    is_sum = is_spaced and (falls or "=" in found.string[found.end() : found.end() + 20])
    return f"{found[1]} {'minus' if is_sum else 'to'} "


def _chain(found: re.Match[str]) -> str:
    parts = found.group().split("-")
    say = digits if sum(len(part) for part in parts) > 8 else written
    return ", ".join(say(part) for part in parts)


def _power(found: re.Match[str]) -> str:
    """Say an exponent: of a letter squared or cubed, else the power."""
    is_letter = found.string[found.start() - 1 : found.start()].isalpha()
    if is_letter and not found[1] and found[2] in ("2", "3"):
        return " squared" if found[2] == "2" else " cubed"
    return f" to the power of {'minus ' if found[1] == '-' else ''}{written(found[2])}"


def _scaled(found: re.Match[str]) -> str:
    if found[2] == "B" and "." not in found[1]:
        return f"{written(found[1])} B"  # exit 14B, a 7B model
    if found[2] == "K" and found[1] in ("2", "4", "5", "8"):
        return f"{written(found[1])} K"
    return f"{written(found[1])} {_SCALES[found[2].lower()]}"


def read_ranges(text: str) -> str:
    """Say what joins numbers, and take out what only groups digits."""
    text = _SPACED.sub(lambda found: found.group().replace(" ", ""), text)
    text = _APOSTROPHES.sub(lambda found: found.group().replace("'", ""), text)
    text = _DOTS.sub(lambda found: found.group().replace(".", ""), text)
    text = _ORDINAL.sub(_ordinal, text)
    text = _CHAIN.sub(_chain, text)
    text = _RANGE.sub(_range, text)
    text = _POWER.sub(_power, text)
    return _SCALED.sub(_scaled, text)


def _ordinal(found: re.Match[str]) -> str:
    return ordinal(int(found[1].replace(",", ""))) if len(found[1]) <= 20 else found.group()


def _number(found: re.Match[str]) -> str:
    """Say a number; whatever letters it touches stand apart from it."""
    before, after = found.string[max(0, found.start() - 1) : found.start()], found.string[found.end() : found.end() + 1]
    return f"{' ' * before.isalpha()}{written(found.group())}{' ' * after.isalpha()}"


def read_plain(text: str) -> str:
    """Say all numbers that are left."""
    text = _SIGN.sub(lambda found: _SIGNS[found[1]], text)
    return _NUMBER.sub(_number, text)
