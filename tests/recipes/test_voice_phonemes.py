"""The phonemes that the voice learns from: a full stop at the end of a sentence makes no abbreviation of a word."""

import re
from types import SimpleNamespace

import pytest

from recipes.voice.phonemes import Speller


class Reader:
    """Reads like hibari: abbreviations first, then it removes spaces before marks; special texts lose their stop."""

    def __init__(self, **read_as: str) -> None:
        self._read_as = {f"{word}.": text for word, text in read_as.items()}
        self.g2p = SimpleNamespace(tokenizer=SimpleNamespace(special={"co.": ["co."], "a.m.": ["a.m."], "gonna": []}))

    def phonemize(self, text: str) -> list[str]:
        words = [self._read_as.get(word, word) for word in text.split(" ")]
        words = re.sub(r" +([,.;:!?])", r"\1", " ".join(words)).split(" ")
        return [" ".join(word[:-1] if word in self.g2p.tokenizer.special else word for word in words)]


@pytest.mark.parametrize("word", ["no", "fig", "Jan", "co", "sun"])
def test_a_word_before_a_full_stop_is_spelled_like_the_same_word_elsewhere(word):
    spell = Speller(Reader(no="number.", fig="figure.", Jan="January."))

    assert spell(f"The answer is {word}.") == f"The answer is {word}."
    assert (
        spell(f'The {word} ("{word}.") is {word}. It is {word}.') == f'The {word} ("{word}.") is {word}. It is {word}.'
    )


def test_initials_keep_their_full_stop():
    assert Speller(Reader())("J. Smith came at five a.m. sharp.") == "J. Smith came at five a.m sharp."


def test_a_spelling_that_still_depends_on_the_full_stop_is_refused():
    reader = Reader()
    reader.phonemize = lambda text: [text.replace("no .", "number.").replace(" .", ".")]

    with pytest.raises(SystemExit, match="hibari reads 'no' before a full stop as"):
        Speller(reader)
