"""Texts for evaluation, which are never part of the stream."""

import functools
import re

from training.texts.lists import sections


def held_out_sentences() -> dict[str, list[str]]:
    """Return the evaluation texts: plain, numbers, names, short and long; and those of references for cloning."""
    return {name: list(lines) for name, lines in sections("held_out.txt").items()}


def is_held_out(text: str) -> bool:
    """Tell whether this is an evaluation text, whatever its case and punctuation."""
    return bare(text) in _bare_held_out()


@functools.cache
def _bare_held_out() -> frozenset[str]:
    return frozenset(bare(text) for lines in sections("held_out.txt").values() for text in lines)


def bare(text: str) -> str:
    """Give a text without case and punctuation."""
    return re.sub(r"[^a-z0-9$£%]+", " ", text.lower()).strip()
