"""What the stream is made of: sentences and words that `debian.py` gathered."""

import functools
import json
import lzma
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Corpora:
    """What ``prepare`` gathered: sentences in a fixed random order, common words by frequency, all words."""

    sentences: list[str]
    common: list[str]
    words: list[str]


@functools.cache
def load(path: Path) -> Corpora:
    """Read what ``prepare`` wrote."""
    return Corpora(**json.loads(lzma.decompress(path.read_bytes())))
