"""Promises of text/tidy: what is refused, what is tidied, and that nothing read aloud is touched."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import TextError
from s1_mini.text.tidy import tidied

LIMIT = 20_000


@pytest.mark.parametrize("text", ["(excited) Hello!", "<|im_end|>", "<|semantic:5|>", "½ × 3² ≠ ﬁ", "€ 5,000.00", "😀"])
def test_what_is_read_aloud_stays_as_it_was(text):
    assert tidied(text, LIMIT) == text


def test_letters_and_their_accents_are_composed():
    assert tidied("Cafe\u0301", LIMIT) == "Café"


@pytest.mark.parametrize("space", ["  ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u2009", "\u3000", "\u2028"])
def test_any_white_space_is_one_space(space):
    assert tidied(f"one{space}two", LIMIT) == "one two"


@pytest.mark.parametrize("gap", ["\n\n", "\r\n\r\n", "\r\r", " \n \t\n ", "\n\n\n\n", "\u2029"])
def test_a_blank_line_is_a_paragraph_break(gap):
    assert tidied(f"one{gap}two", LIMIT) == "one\n\ntwo"


def test_windows_line_ends_are_no_blank_lines():
    assert tidied("one\r\ntwo", LIMIT) == "one two"


def test_ends_are_trimmed_and_byte_order_marks_vanish():
    assert tidied("\ufeff \n\n one\ufeff two \n\n", LIMIT) == "one two"


def test_joiners_that_change_how_a_word_is_written_stay():
    text = "می\u200cخواهم 👩\u200d🚀"

    assert tidied(text, LIMIT) == text


@given(st.text())
def test_normalising_twice_changes_nothing_more(text):
    try:
        once = tidied(text, LIMIT)
    except TextError:
        return

    assert tidied(once, LIMIT) == once


@given(st.text(st.characters(exclude_categories=["Z", "C", "M"]), min_size=1))
def test_only_white_space_and_composition_change(text):
    try:
        tidy = tidied(f"  {text}\n", LIMIT)
    except TextError:
        return

    assert tidy == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("text", ["a", "7", "Ω", "字", "あ", "ก", "א", "€", "+", "😀", "٣", "\U0001e900", "\U0003ffff"])
def test_one_letter_number_or_symbol_of_any_script_is_enough(text):
    assert tidied(text, LIMIT) == text


@pytest.mark.parametrize("text", ["", " \t\n", "\ufeff"])
def test_an_empty_text_is_refused(text):
    with pytest.raises(TextError, match="text: it is empty"):
        tidied(text, LIMIT)


@pytest.mark.parametrize("text", ["...", "?!", "「」", "— –", "\u0301", "\u200b"])
def test_a_text_with_nothing_to_say_is_refused(text):
    with pytest.raises(TextError, match="has nothing to say"):
        tidied(text, LIMIT)


@pytest.mark.parametrize("text", [None, b"bytes", 5, ["a"]])
def test_what_is_no_str_is_refused_by_its_type(text):
    with pytest.raises(TextError, match=f"{type(text).__name__} is not text"):
        tidied(text, LIMIT)


def test_a_text_may_be_as_long_as_the_limit_and_no_longer():
    assert tidied("a" * 10, 10) == "a" * 10

    with pytest.raises(TextError, match=r"11 characters are too many; at most 10 .* S1_MINI_MAX_TEXT_LENGTH"):
        tidied("a" * 11, 10)


@pytest.mark.parametrize("code", [0x00, 0x07, 0x1B, 0x1C, 0x7F, 0x85, 0x9F])
def test_a_control_character_is_refused_by_code_point_and_position(code):
    with pytest.raises(TextError, match=f"control character U\\+{code:04X} at position 2"):
        tidied(f"ab{chr(code)}c", LIMIT)


@pytest.mark.parametrize("code", [0xD83D, 0xDE00])
def test_half_a_surrogate_pair_is_refused_by_position(code):
    with pytest.raises(TextError, match=rf"lone surrogate U\+{code:04X} at position 3"):
        tidied(f"abc{chr(code)}", LIMIT)


def test_an_error_names_its_field():
    with pytest.raises(TextError) as caught:
        tidied("", LIMIT)

    assert caught.value.field == "text"
