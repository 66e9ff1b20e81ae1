"""The phonemes that the voice learns from: a full stop at the end of a sentence makes no abbreviation of a word."""

import re
from types import SimpleNamespace

import pytest

from recipes.voice.phonemes import Speller


class Reader:
    """Reads like hibari: abbreviations first, then it removes spaces before marks; special texts lose their stop."""

    def __init__(self, **read_as: str) -> None:
        self._read_as = {f"{word}.": text for word, text in read_as.items()}
        special = {"co.": ["co."], "b.": ["b."], "gonna": ["gon", "na"]}
        self.g2p = SimpleNamespace(tokenizer=SimpleNamespace(special=special, suffix=re.compile(r"(?<=[a-z])\.$")))

    def phonemize(self, text: str) -> list[str]:
        for abbreviation, read in self._read_as.items():
            text = re.sub(rf"\b{re.escape(abbreviation)}(?!\w)", read, text)
        return [" ".join(self._said(word) for word in re.sub(r" +([,.;:!?])", r"\1", text).split(" "))]

    def _said(self, word: str) -> str:
        tokenizer = self.g2p.tokenizer
        is_one = word in tokenizer.special or (re.fullmatch(r"[A-Z]\.", word) and not tokenizer.suffix.search(word))
        return word.rstrip(".") if is_one else word


@pytest.mark.parametrize("word", ["no", "fig", "Jan", "co", "sun", "b", "B"])
def test_a_word_before_full_stops_is_spelled_like_the_same_word_elsewhere(word):
    spell = Speller(Reader(no="number", fig="figure", Jan="January"))

    for text in (f"The answer is {word}.", f'The {word} ("{word}.") is {word}. It is {word}.', f"I said {word}... Go."):
        assert spell(text) == text


def test_full_stops_inside_an_address_stay():
    assert Speller(Reader())("Write to no.one at example.org.") == "Write to no.one at example.org."


@pytest.mark.parametrize("mark", [".", "..."])
def test_a_spelling_that_still_depends_on_the_full_stop_is_refused(mark):
    reader = Reader()
    reader.phonemize = lambda text: [text.replace(f"no {mark}", f"number{mark}").replace(" .", ".")]

    with pytest.raises(SystemExit, match="hibari reads 'no' before"):
        Speller(reader)
