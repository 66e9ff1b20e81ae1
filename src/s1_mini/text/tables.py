"""How words and tables of them are written in this room: `word word`, and `key=value, key=value`."""

from __future__ import annotations


def words(text: str) -> list[str]:
    return text.split()


def table(text: str) -> dict[str, str]:
    """Read a table whose keys have no equals sign."""
    return dict(each.split("=", 1) for each in text.split(", "))


def signs(text: str) -> dict[str, str]:
    """Read a table whose keys have one character, whichever."""
    return {each[0]: each[2:] for each in text.split(", ")}
