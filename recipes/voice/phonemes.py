"""Convert texts to American and British phonemes for the teacher, with the normalized text for the model.

python -m recipes.voice.phonemes --texts FILE --output FILE --count 100000 [--start 0] [--british 20000] [--mix new]
python -m recipes.voice.phonemes --held-out --output FILE

`--texts` is the output of `recipes.voice.texts prepare`, and `--mix` (new, further) chooses the shares of the kinds of
texts. The output is compressed JSON, a list of [text, American, British]. The text is normalized to the voice's
alphabet, as the engine passes it to the model. Needs hibari-tts.
"""

from __future__ import annotations

import itertools
import json
import lzma
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from recipes.voice.shared import parser
from recipes.voice.sizes import ALPHABET, LANGUAGE
from recipes.voice.texts import Mix, held_out_sentences, load, utterances
from s1_mini.text.form import TextForm

# hibari always reads A as the article. A is a letter next to a single letter, or as a capital inside a sentence.
LETTER_A = re.compile(r"\bA\b(?= [A-Z]\b)|(?<=\b[A-Z] )A\b|(?<=[a-z,;:] )A\b")
LIKE_THE_LETTER = "eh"  # hibari reads this like the letter
# hibari takes letters before a full stop for an abbreviation: "He said no." and "no..." end with "number", and "Plan
# B." loses its full stop. The texts are normalized, so a full stop that no letter follows ends a sentence. hibari
# removes the space after it has read its abbreviations.
FULL_STOP = re.compile(r"(?<=[A-Za-z])\.(?![A-Za-z])")
# Words that are also abbreviations for hibari or for most readers, and letters.
ENDINGS = (
    *("no", "nos", "min", "max", "co", "fig", "sat", "sun", "mar", "jan", "art", "inc", "ill", "ore", "mass", "wash"),
    *("gal", "in", "ed", "ch", "vol", "est", "col", "gen", "rev", "Sun", "Sat", "Mar", "Jan", "Miss", "Gen", "May"),
    *("mon", "wed", "dec", "Mon", "Wed", "Dec", "pt", "pop", "B", "I", "M", "x"),
)


class Speller:
    """Phonemes of normalized texts in one accent."""

    def __init__(self, hibari: Any) -> None:
        self._hibari = hibari
        tokenizer = hibari.g2p.tokenizer
        for text in [text for text in tokenizer.special if re.fullmatch(r"[A-Za-z]+\.", text)]:
            del tokenizer.special[text]  # it keeps its full stop, which is lost later
        tokenizer.suffix = re.compile(rf"{tokenizer.suffix.pattern}|(?<=[A-Za-z])\.$")  # "B." is a letter and a stop
        for word, mark in itertools.product(ENDINGS, (".", "...")):
            ends, calls = self(f"They say {word}{mark}"), self(f"They say {word}!")
            if ends != calls[:-1] + mark:
                raise SystemExit(f"hibari reads {word!r} before {mark!r} as {ends!r}, but elsewhere as {calls!r}")

    def __call__(self, text: str) -> str:
        told = FULL_STOP.sub(" .", LETTER_A.sub(LIKE_THE_LETTER, text))
        return " ".join(self._hibari.phonemize(told)).strip()


def write(texts: Iterable[str], output: Path, *, num_british: int | None = None) -> int:
    """Write all texts; those after the first `num_british` have American phonemes in both places."""
    from hibari import Hibari
    from hibari.g2p import G2P

    american, british = Speller(Hibari(threads=1)), Speller(Hibari(threads=1, g2p=G2P(british=True)))
    form, lines = TextForm(LANGUAGE, frozenset(ALPHABET)), []
    for index, text in enumerate(texts):
        read = form.transcript(text)
        is_british = num_british is None or index < num_british
        lines.append((read, american(read), british(read) if is_british else american(read)))
    output.write_bytes(lzma.compress(json.dumps(lines, ensure_ascii=False).encode()))
    return len(lines)


def main() -> None:
    options = parser(
        __doc__,
        texts=Path | None,
        held_out=False,
        output=Path,
        seed=0,
        start=0,
        count=100_000,
        british=int | None,
        mix=get_args(Mix),
    ).parse_args()
    if options.held_out:
        texts: Iterable[str] = [text for kind in held_out_sentences().values() for text in kind]
    else:
        corpora = load(options.texts) if options.texts else None
        texts = itertools.islice(utterances(options.seed, corpora, options.start, options.mix), options.count)
    print(write(texts, options.output, num_british=options.british))


if __name__ == "__main__":
    main()
