"""Tidying text: refused characters, normalized white space, and no change to anything that is read aloud."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import TextError
from s1_mini.text.tidy import tidied

LIMIT = 20_000


@pytest.mark.parametrize(
    "text",
    [
        *("(excited) Hello!", "<|im_end|>", "<|semantic:5|>", "½ × 3² ≠ ﬁ", "€ 5,000.00", "می\u200cخواهم 👩\u200d🚀"),
        *("a", "7", "Ω", "字", "あ", "ก", "א", "€", "+", "😀", "٣", "\U0001e900", "\U0003ffff"),
    ],
)
def test_characters_that_are_read_aloud_are_unchanged(text):
    assert tidied(text, LIMIT) == text


def test_letters_and_their_accents_are_composed():
    assert tidied("Cafe\u0301", LIMIT) == "Café"


@pytest.mark.parametrize("space", ["  ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u2009", "\u3000", "\u2028"])
def test_any_white_space_is_one_space(space):
    assert tidied(f"one{space}two", LIMIT) == "one two"


@pytest.mark.parametrize("gap", ["\n\n", "\r\n\r\n", "\r\r", " \n \t\n ", "\n\n\n\n", "\u2029"])
def test_a_blank_line_is_a_paragraph_break(gap):
    assert tidied(f"one{gap}two", LIMIT) == "one\n\ntwo"


def test_ends_are_trimmed_and_byte_order_marks_vanish():
    assert tidied("\ufeff \n\n one\ufeff two \n\n", LIMIT) == "one two"


@given(st.text(st.characters(exclude_categories=["Cs"])))
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


REFUSED = [
    *((text, "text: is empty") for text in ("", " \t\n", "\ufeff")),
    *((text, "contains nothing to speak") for text in ("...", "?!", "「」", "— –", "\u0301", "\u200b")),
    *((text, f"must be a str, not {type(text).__name__}") for text in (None, b"bytes", 5, ["a"])),
    *(
        (f"ab{chr(code)}c", rf"control character U\+{code:04X} \(character 3\)")
        for code in (0x00, 0x07, 0x1B, 0x1C, 0x7F, 0x85, 0x9F)
    ),
    *((f"abc{chr(code)}", rf"lone surrogate U\+{code:04X} \(character 4\)") for code in (0xD83D, 0xDE00)),
    ("a" * (LIMIT + 1), r"has 20001 characters; the limit is 20000.* S1_MINI_MAX_TEXT_LENGTH"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_unspeakable_text_is_refused_with_the_reason(text, reason):
    with pytest.raises(TextError, match=reason) as caught:
        tidied(text, LIMIT)

    assert caught.value.field == "text"


@pytest.mark.parametrize(
    "text",
    ["a" + "\u0301" * 31, "a" + "\u0f73" * 31, "a" + "\u0301\u0316\ufeff" * 16, "a" + "\u0301\u2060" * 31],
    ids=["marks", "marks of class 0", "marks around byte order marks", "marks around word joiners"],
)
def test_marks_that_take_seconds_to_sort_are_refused(text):
    with pytest.raises(TextError, match="has more than 30 combining marks in a row"):
        tidied(text, LIMIT)
    assert tidied(text.replace("\u0316", "")[:31], LIMIT)


def test_a_text_may_be_as_long_as_the_limit():
    assert tidied("a" * LIMIT, LIMIT) == "a" * LIMIT
