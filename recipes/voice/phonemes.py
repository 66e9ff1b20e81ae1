"""Convert texts to American and British phonemes for the teacher, with the normalized text for the model.

python -m recipes.voice.phonemes --texts FILE --output FILE --count 100000 [--start 0] [--british 20000]
python -m recipes.voice.phonemes --held-out --output FILE

`--texts` is the output of `recipes.voice.texts prepare`. The output is compressed JSON, a list of
[text, American, British]. The text is normalized to the voice's alphabet, as the engine passes it to the model. Needs
hibari-tts.
"""

from __future__ import annotations

import itertools
import json
import lzma
import re
from collections.abc import Iterable
from pathlib import Path

from recipes.voice.shared import parser
from recipes.voice.sizes import ALPHABET, LANGUAGE
from recipes.voice.texts import held_out_sentences, load, utterances
from s1_mini.text.form import TextForm

# hibari always reads A as the article. A is a letter next to a single letter, or as a capital inside a sentence.
LETTER_A = re.compile(r"\bA\b(?= [A-Z]\b)|(?<=\b[A-Z] )A\b|(?<=[a-z,;:] )A\b")
LIKE_THE_LETTER = "eh"  # hibari reads this like the letter


def write(texts: Iterable[str], output: Path, *, num_british: int | None = None) -> int:
    """Write all texts; those after the first `num_british` have American phonemes in both places."""
    from hibari import Hibari
    from hibari.g2p import G2P

    american, british = Hibari(threads=1), Hibari(threads=1, g2p=G2P(british=True))
    form, lines = TextForm(LANGUAGE, frozenset(ALPHABET)), []
    for index, text in enumerate(texts):
        read = form.transcript(text)
        told = LETTER_A.sub(LIKE_THE_LETTER, read)
        first = " ".join(american.phonemize(told)).strip()
        is_british = num_british is None or index < num_british
        lines.append((read, first, " ".join(british.phonemize(told)).strip() if is_british else first))
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
    ).parse_args()
    if options.held_out:
        texts: Iterable[str] = [text for kind in held_out_sentences().values() for text in kind]
    else:
        corpora = load(options.texts) if options.texts else None
        texts = itertools.islice(utterances(options.seed, corpora, options.start), options.count)
    print(write(texts, options.output, num_british=options.british))


if __name__ == "__main__":
    main()
