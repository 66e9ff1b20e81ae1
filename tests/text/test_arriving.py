"""The parts of a text that arrives in pieces."""

from __future__ import annotations

from random import Random

import pytest

from s1_mini.exceptions import TextError, TextTooLongError
from s1_mini.text.arriving import ArrivingText
from s1_mini.text.form import TextForm
from s1_mini.text.split import MAX_REST
from s1_mini.text.tidy import tidied

TEXTS = [
    "Hello there,  it's 3.14 o'clock — don't\tgo!\n\nNext paragraph: “so” (yes).",
    "你好，世界。今天是２０２６年，对吗？",
    "  Leading space, e\u0301te\u0301 and \ufeffmarks\u2060; naïve = \u0338 signs ½ cup ",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092c\u094b\u0932\u0924\u0947, \u0e44\u0e17\u0e22 \U0001f1e9\U0001f1ea ok",
    "one",
    "... ok ...",
]


def parts(text: str, sizes: list[int], *, keeps_paragraphs: bool = True) -> list[str]:
    """Return what each piece of the text completes, without empty parts."""
    arriving, found, rest = ArrivingText(1000, keeps_paragraphs=keeps_paragraphs), [], text
    for size in sizes:
        found.append(arriving.add(rest[:size], is_last=False))
        rest = rest[size:]
    return [part for part in (*found, arriving.add(rest, is_last=True)) if part]


@pytest.mark.parametrize("text", TEXTS)
def test_parts_of_any_pieces_are_together_the_tidy_text(text: str) -> None:
    random = Random(0)
    for size in (1, 2, 3, 5, len(text), *(0,) * 20):
        sizes = [size or random.randint(0, 6) for _ in range(len(text))]
        assert "".join(parts(text, sizes)) == tidied(text, 1000)


def test_a_word_is_held_back_until_a_space_or_a_mark_follows_it() -> None:
    arriving = ArrivingText(100, keeps_paragraphs=False)

    found = [arriving.add(piece, is_last=False) for piece in ("Hel", "lo", " ", "wor", "ld,", " 3", ".", "5")]

    assert found == ["", "", "Hello", "", " world", "", ", 3", ""]
    assert arriving.add("", is_last=True) == ".5"


def test_a_paragraph_break_is_kept_or_becomes_a_space() -> None:
    assert parts("One\n\ntwo", [1] * 8) == ["One", "\n\ntwo"]
    assert parts("One\n\ntwo", [1] * 8, keeps_paragraphs=False) == ["One", " two"]


def test_a_text_without_anything_to_speak_is_refused_at_its_end() -> None:
    arriving = ArrivingText(100, keeps_paragraphs=False)

    assert not arriving.add("... ", is_last=False)
    with pytest.raises(TextError, match="contains nothing to speak"):
        arriving.add("!", is_last=True)


def test_a_text_beyond_the_limit_is_refused() -> None:
    arriving = ArrivingText(10, keeps_paragraphs=False)

    arriving.add("123 567 ", is_last=False)
    with pytest.raises(TextTooLongError, match=r"text: has 11 characters so far; the limit is 10\. .*MAX_TEXT_LENGTH"):
        arriving.add("abc", is_last=False)


WRITTEN = {
    "en": "Dr. Smith has 3 cats, e.g. Tom. On May 5, 2020 we met (at 10:30), and NASA paid $5.20 for it! Yes sooo",
    "de": "Das kostet 3,50 €. Und 25 % mehr, oder? Nein, am 3. Mai war es noch billiger als heute",
    "zh": "你好，世界。今天15度，对吗？对",
    None: "She said that it was 3 of them. Und das ist der Preis: 3,50 €. No numbers here, and none of the signs.",
}


def read_parts(text: str, language: str | None, size: int) -> list[str]:
    """Return what each piece of `size` characters completes of a text that is normalized."""
    arriving = ArrivingText(10_000, read=TextForm(language, is_chosen=True).reader("auto"))
    found = [arriving.add(text[at : at + size], is_last=False) for at in range(0, len(text), size)]
    return [*found, arriving.add("", is_last=True)]


@pytest.mark.parametrize("language", WRITTEN)
def test_a_text_is_normalized_the_same_whatever_its_pieces(language: str | None) -> None:
    text = WRITTEN[language]
    expected = TextForm(language, is_chosen=True).script(text, 1000).text

    for size in (1, 2, 3, 7, 20, len(text)):
        assert "".join(read_parts(text, language, size)) == expected


def test_plain_words_are_certain_before_the_sentence_ends_and_numbers_are_not() -> None:
    text = "We saw the three of them on May 5 and left. Then go"

    found = [part for part in read_parts(text, "en", 1) if part]

    assert found == ["We", " saw", " the", " three", " of", " them", " on", " May fifth and left", ". Then go"]


def test_a_word_that_normalization_changes_later_stays_as_it_was_read() -> None:
    arriving = ArrivingText(100, read=lambda text: text.upper())

    found = [arriving.add(piece, is_last=False) for piece in ("one two three", " four.", " Five")]

    assert [*found, arriving.add("", is_last=True)] == ["one", " two three", "", " FOUR. FIVE"]


@pytest.mark.parametrize("text", ["word " * 500, "一二三四五，" * 400, "x" * 2500])
def test_a_sentence_without_end_is_normalized_in_stretches(text: str) -> None:
    lengths: list[int] = []

    def read(sentence: str) -> str:
        lengths.append(len(sentence))
        return sentence

    for size in (1, 333, len(text)):
        arriving = ArrivingText(10_000, read=read)
        parts = [arriving.add(text[at : at + size], is_last=False) for at in range(0, len(text), size)]
        assert "".join([*parts, arriving.add("", is_last=True)]) == text.strip()
    assert max(lengths) <= MAX_REST


def test_a_text_of_markup_alone_is_refused_at_its_end() -> None:
    arriving = ArrivingText(100, read=lambda _: "")

    arriving.add("<b> a </b>", is_last=False)
    with pytest.raises(TextError, match="contains nothing to speak"):
        arriving.add("", is_last=True)
