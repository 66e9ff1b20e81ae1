"""The lists of words and sentences that were written for this project."""

import functools
import random
from pathlib import Path

HERE = Path(__file__).parent

Random = random.Random


@functools.cache
def sections(name: str) -> dict[str, list[str]]:
    """Read a file whose sections are opened by ``[name]``."""
    found: dict[str, list[str]] = {}
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


@functools.cache
def word_lists() -> dict[str, list[str]]:
    """Give the words of templates by their kind."""
    return {
        name: [word for line in lines for word in line.split(", ")] for name, lines in sections("wordlists.txt").items()
    }


def one(rng: Random, name: str) -> str:
    """Choose a word of a kind."""
    return rng.choice(word_lists()[name])
