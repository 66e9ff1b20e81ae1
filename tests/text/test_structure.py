"""The structure of a text: its lines show where it is divided, in plain text and in Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import TextError
from s1_mini.text.form import TextForm
from s1_mini.text.split import Stretches, split_arriving, split_pieces
from s1_mini.text.structure import find_breaks, mark_structure, structured, unified_lines

LINES = st.sampled_from(
    ["", " ", "a", "# b", "- c", "1. d", "***", "---", "===", "|e|", "|---|", "f | g", "```", "\u2028"]
)

DIVIDED = [
    ("One. Two.", ["sentence"]),
    ("One\ntwo. Three.", ["sentence"]),
    ("One.\n\nTwo.", ["paragraph"]),
    ("One.\r\n \t\r\nTwo.", ["paragraph"]),
    ("One.\u2029Two.", ["paragraph"]),
    ("One\u2028Two", ["sentence"]),
    ("One\u2028 \u2028Two", ["sentence"]),
    ("One.\n\n# Two\n\nThree.", ["heading", "heading"]),
    ("# One\nTwo.", ["heading"]),
    ("### One ###\nTwo.", ["heading"]),
    ("One\n===\nTwo.", ["heading"]),
    ("One\n---\n\nTwo.", ["heading"]),
    ("One.\n---\nTwo.", ["scene"]),
    ("One.\n\n***\n\nTwo.", ["scene"]),
    ("One.\n\n* * *\n\nTwo.", ["scene"]),
    ("One.\n\n- - -\n\nTwo.", ["scene"]),
    ("One.\n\n_____\n\nTwo.", ["scene"]),
    ("One.\n\n\u2042\n\nTwo.", ["scene"]),
    ("One.\n\n#\n\nTwo.", ["scene"]),
    ("One.\n\n***\n\n# Two\n\nThree.", ["scene", "heading"]),
    ("One:\n- Two\n- Three\n\nFour.", ["item", "item", "paragraph"]),
    ("* One\n* Two", ["item"]),
    ("1. One\n2. Two", ["item"]),
    ("1) One\n2) Two", ["item"]),
    ("One.\n2.1 Two\nThree.\n2.2.1 Four\nFive.", ["item"] * 4),
    ("One is\n2.5 or more.", []),
    ("2.1 One\n2.2 Two", ["item"]),
    ("# One\n2.1 Two\n2.1.1 Three", ["heading", "item"]),
    ("One has a screen and\n2.5 GB of RAM.", []),
    ("Eins kommt erst um\n10.30 Uhr ab.", []),
    ("Eins ist genug.\n2.50 Euro kostet es.", ["sentence"]),
    ("Eins sind\n3.5 Millionen.", []),
    ("One begins at\n10.30 Monday.", []),
    ("One is version\n1.2.3 Beta.", []),
    ("One is approx.\n2.5 Zebras.", []),
    ("One is done.\n2.5 Hands are\nenough.", ["sentence"]),
    ("- One with\n  2.5 Hands", []),
    ("- One\n  and more\n- Two", ["item"]),
    ("| One | two |\n|-----|-----|\n| three | four |", ["item"]),
    ("One | two\n--- | ---\nthree | four\nfive | six", ["item", "item"]),
    ("The *** is no break. It is 3 - 2.", ["sentence"]),
    ("See #5 and #tags.\nGo.", ["sentence"]),
    ("```\n# no heading\n```", []),
]
AT_ONCE = ("|", "```", "===", "\n---\n\n")  # tables, code and underlined titles, which are seen only as a whole


def divisions(text: str, form: TextForm) -> list[str]:
    pieces = split_pieces(form.script(text, 1000).structured, 200)
    return [piece.division for piece in pieces][1:]


@pytest.mark.parametrize(("text", "expected"), DIVIDED)
def test_a_text_that_is_normalized_keeps_its_divisions(text: str, expected: list[str]) -> None:
    joined = {"sentence"}  # sentences share a piece

    assert divisions(text, TextForm("en")) == [each for each in expected if each not in joined]


@pytest.mark.parametrize(
    ("text", "expected"), [case for case in DIVIDED if not any(each in case[0] for each in AT_ONCE)]
)
def test_a_text_that_arrives_letter_by_letter_has_the_same_divisions(text: str, expected: list[str]) -> None:
    stretches, found, rest = Stretches(), [], ""
    for letter in [*text, ""]:
        whole, rest = split_arriving(rest + letter) if letter else (rest, "")
        if any(map(str.isalnum, whole)):
            found.append(stretches.join(whole).division)
        else:
            stretches.skip(whole)

    assert found == [None, *expected]


@pytest.mark.parametrize("language", ["de", None])
def test_a_text_in_another_language_keeps_its_divisions(language: str | None) -> None:
    text = "# Eins\n\nDas ist gut.\n\nDas auch.\n\n***\n\nUnd nun?"

    assert divisions(text, TextForm(language, is_chosen=language is None)) == ["heading", "paragraph", "scene"]


def test_users_see_paragraphs_instead_of_separators() -> None:
    text = TextForm("en").script("# One\nTwo:\n- three\n- four\n\n***\n\nFive.", 1000).text

    assert text == "One.\n\nTwo: three, four.\n\nFive."


def test_a_client_cannot_send_separators() -> None:
    with pytest.raises(TextError, match=r"control character U\+001C"):
        TextForm().script("One.\x1cTwo.", 100)


@given(st.lists(LINES, max_size=12))
def test_marking_twice_is_marking_once_and_adds_only_white_space(lines: list[str]) -> None:
    text = unified_lines("\n".join(lines))
    marked = mark_structure(text)

    assert mark_structure(marked) == marked
    assert marked.split() == text.split() == structured(text).split()


def test_breaks_are_where_paragraphs_headings_and_scenes_begin() -> None:
    text = "One.\nTwo.\r\n\r\nThree.\n# Four\nFive.\n***\nSix."

    assert [text[start:].split(maxsplit=1)[0] for start in find_breaks(text)] == ["Three.", "#", "Five.", "***", "Six."]
