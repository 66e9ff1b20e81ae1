"""`python -m recipes.voice.texts prepare --output FILE` gathers the corpora from Debian's files.

`python -m recipes.voice.texts show [--texts FILE] [--seed 0] [--count 40]` prints texts of the stream.
"""

import itertools
from pathlib import Path

from recipes.voice.shared import parser
from recipes.voice.texts.debian import prepare
from recipes.voice.texts.stream import load, utterances

if __name__ == "__main__":
    command = parser(__doc__, ("prepare", "show"), output=Path | None, texts=Path | None, seed=0, count=40)
    given = command.parse_args()
    if given.verb == "show":
        corpora = load(given.texts) if given.texts else None
        print(*itertools.islice(utterances(given.seed, corpora), given.count), sep="\n")
    elif given.output is None:
        command.error("prepare requires --output")
    else:
        prepare(given.output)
