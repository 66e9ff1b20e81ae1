"""A checkpoint that declares what it reads gets nothing else; one that declares nothing gets what was sent."""

from __future__ import annotations

import json
from string import ascii_letters

import pytest

from s1_mini.exceptions import CheckpointMismatchError, TextError
from s1_mini.text.form import TextForm
from s1_mini.weights.directory import DEFAULT_MODEL

WORDS = TextForm("en", frozenset(ascii_letters + " '(),-.:;?!"))


def test_a_checkpoint_that_declares_nothing_gets_what_was_sent() -> None:
    assert TextForm().script("Take 2  жуки 😀!", 100).text == "Take 2 жуки 😀!"


def test_a_checkpoint_of_words_gets_words_unless_normalize_is_off() -> None:
    assert WORDS.script("# Hi\n\nTake 2 **now**.", 100).text == "Hi.\n\nTake two now."
    with pytest.raises(TextError, match=r"'2' \(U\+0032 DIGIT TWO\) at position 5 .* normalize=auto reads numbers"):
        WORDS.script("Take 2 now.", 100, choice="off")


def test_letters_with_accents_and_other_marks_become_the_nearest_of_the_alphabet() -> None:
    assert WORDS.script("Zoë, “Straße” A–Z naïve 「x」.", 100).text == "Zoe, Strasse A-Z naive x."


@pytest.mark.parametrize(("text", "read"), [("Hi", "Hi."), ("42", "forty-two."), ("Why?", "Why?"), ("(so)", "(so)")])
def test_words_that_end_without_a_mark_end_as_a_sentence(text: str, read: str) -> None:
    assert WORDS.script(text, 100).text == read
    assert WORDS.script("Hi", 100, choice="off").text == TextForm("en").script("Hi", 100).text == "Hi"


def test_the_first_letter_outside_the_alphabet_is_named_where_it_was_sent() -> None:
    with pytest.raises(TextError, match=r"'д' \(U\+0434 CYRILLIC SMALL LETTER DE\) at position 12 is outside") as told:
        WORDS.script("He has 3 of\tда 字.", 100)
    assert told.value.field == "text"
    assert "S1_MINI_UNSPEAKABLE=skip" in str(told.value)


def test_with_skip_the_rest_is_spoken_and_told_and_nothing_left_is_still_an_error() -> None:
    script = WORDS.script("He said 2 да.", 100, unspeakable="skip")

    assert script.text == "He said two."
    assert script.warning == (
        "outside this voice's alphabet, and not spoken: U+0434 CYRILLIC SMALL LETTER DE, U+0430 CYRILLIC SMALL LETTER A"
    )
    with pytest.raises(TextError, match="'д'"):
        WORDS.script("да, да!", 100, unspeakable="skip")


@pytest.mark.parametrize("text", ["~~~", "---\n***", "<b></b>"])
def test_markup_alone_has_nothing_to_say(text: str) -> None:
    with pytest.raises(TextError, match="has nothing to say"):
        WORDS.script(text, 100)


def test_the_bound_on_a_text_holds_for_what_is_spoken_of_it() -> None:
    with pytest.raises(TextError, match="its 40 characters are 159 when they are spoken; at most 100 are allowed"):
        WORDS.script("1" * 40, 100)


@pytest.mark.parametrize("text", [5, {"language": "tlh"}, {"alphabet": ""}, {"alphabet": ["a"]}])
def test_a_declaration_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"config\.json: text"):
        TextForm.from_config({"text": text})


def test_the_voice_that_ships_reads_english_words() -> None:
    form = TextForm.from_config(json.loads((DEFAULT_MODEL / "config.json").read_text(encoding="utf-8")))

    assert (
        form.script("It was 1984, at 5% & 😀.", 100).text
        == "It was nineteen eighty-four, at five percent and grinning face."
    )
    assert form.alphabet is not None
    assert not form.alphabet & set("0123456789%&é")
