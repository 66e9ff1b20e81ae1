"""Texts written for this project (word lists, held-out sentences) and the corpora that `debian.py` gathered."""

from __future__ import annotations

import functools
import json
import lzma
import random
import re
from dataclasses import dataclass
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
    """Return the words of templates by their kind."""
    return {
        name: [word for line in lines for word in line.split(", ")] for name, lines in sections("wordlists.txt").items()
    }


def one(rng: Random, name: str) -> str:
    """Choose a word of a kind."""
    return rng.choice(word_lists()[name])


@dataclass(frozen=True)
class Corpora:
    """The result of ``prepare``: sentences in a fixed random order, common words by frequency, all words."""

    sentences: list[str]
    common: list[str]
    words: list[str]


@functools.cache
def load(path: Path) -> Corpora:
    """Read what ``prepare`` wrote."""
    return Corpora(**json.loads(lzma.decompress(path.read_bytes())))


def held_out_sentences() -> dict[str, list[str]]:
    """Return the evaluation texts: plain, numbers, names, short and long; and those of references for cloning."""
    return {name: list(lines) for name, lines in sections("held_out.txt").items()}


def is_held_out(text: str) -> bool:
    """Return whether this is an evaluation text, whatever its case and punctuation."""
    return bare(text) in _bare_held_out()


@functools.cache
def _bare_held_out() -> frozenset[str]:
    return frozenset(bare(text) for lines in sections("held_out.txt").values() for text in lines)


def bare(text: str) -> str:
    """Return a text without case and punctuation."""
    return re.sub(r"[^a-z0-9$£%]+", " ", text.lower()).strip()
