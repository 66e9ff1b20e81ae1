"""Notation of word lists and tables (`word word`, `key=value, key=value`), and the text around a match."""

from __future__ import annotations

import re


def words(text: str) -> list[str]:
    return text.split()


def word_set(text: str) -> frozenset[str]:
    return frozenset(words(text))


def table(text: str) -> dict[str, str]:
    """Read a table whose keys have no equals sign."""
    return dict(each.split("=", 1) for each in text.split(", "))


def signs(text: str) -> dict[str, str]:
    """Read a table whose keys are single characters, including an equals sign."""
    return {each[0]: each[2:] for each in text.split(", ")}


def text_before(found: re.Match[str], length: int) -> str:
    return found.string[max(0, found.start() - length) : found.start()]


def text_after(found: re.Match[str], length: int) -> str:
    return found.string[found.end() : found.end() + length]
