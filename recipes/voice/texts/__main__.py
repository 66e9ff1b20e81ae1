"""`python -m recipes.voice.texts`: gather the corpora, or show what the stream says."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from recipes.voice.texts.debian import prepare
from recipes.voice.texts.lists import load
from recipes.voice.texts.stream import utterances


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m recipes.voice.texts prepare …`` or ``… show``."""
    parser = argparse.ArgumentParser(prog="python -m recipes.voice.texts", description="Texts that the teacher speaks.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("prepare", help="gather the corpora from Debian's files")
    verb.add_argument("--output", type=Path, required=True)
    verb = verbs.add_parser("show", help="print utterances")
    verb.add_argument("--texts", type=Path)
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--count", type=int, default=40)
    given = parser.parse_args(arguments)
    if given.verb == "prepare":
        prepare(given.output)
        return 0
    stream = utterances(given.seed, load(given.texts) if given.texts else None)
    for _ in range(given.count):
        print(next(stream), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
