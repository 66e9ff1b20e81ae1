"""Written words are mapped to the spoken words that they are read as."""

from __future__ import annotations

from itertools import pairwise

import pytest

from s1_mini.alignment.written import divide, find_groups, find_written, keys, without_signs
from s1_mini.text import spoken


def groups_of(text: str) -> list[tuple[str, str]]:
    """Return runs of written words with their spoken words."""
    words, said = find_written(text), keys(spoken(text))
    groups = [part for group in find_groups(text, words, said) for part in divide(group, text, words, said, spoken)]
    return [
        (
            text[words[group.first].start : words[group.stop - 1].stop],
            " ".join(said[group.first_spoken : group.stop_spoken]),
        )
        for group in groups
    ]


def test_plain_words_stand_alone() -> None:
    assert groups_of('He said: "It\'s late, (very) late!"') == [
        ("He", "he"),
        ("said", "said"),
        ("It's", "it's"),
        ("late", "late"),
        ("very", "very"),
        ("late", "late"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It costs $3.50 now.", ("$3.50", "three dollars and fifty cents")),
        ("In 2021 it rained.", ("2021", "twenty twenty one")),
        ("Dr. Smith came.", ("Dr", "doctor")),
        ("A well-known name", ("well-known", "well known")),
        ("1 one", ("1", "one")),
        ("It weighs 2 kg today.", ("2 kg", "two kilograms")),
        ("R&D is hard", ("R&D", "r and d")),
        ("It is 40 000 km away.", ("40 000 km", "forty thousand kilometers")),
        ("So $x_i + 1$ holds.", ("$x_i + 1$", "x sub i plus one")),
        ("Two B-52s flew.", ("B-52s", "b fifty twos")),
    ],
)
def test_numbers_and_abbreviations_keep_the_words_that_they_are_read_as(text: str, expected: tuple[str, str]) -> None:
    assert expected in groups_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith paid $3.50 on March 4, 2021 at 10:05 am. It weighs 2 kg – really.",
        "Call 555-0199 or mail anna@example.com; see https://example.com/a?b=1 for 50% off!",
        "# Title\n\n* one\n* two 2 two\n\n**Bold** and `code` 🙂.",
        "row, row, row your boat 1 2 3 3 3",
        "3 + 4 = 7",
        "...",
        "",
    ],
)
def test_groups_have_all_words_once_and_in_order(text: str) -> None:
    words, said = find_written(text), keys(spoken(text))

    groups = [part for group in find_groups(text, words, said) for part in divide(group, text, words, said, spoken)]

    assert [number for group in groups for number in range(group.first_spoken, group.stop_spoken)] == list(
        range(len(said) if words else 0)
    )
    firsts = [group.first for group in groups]
    assert firsts == sorted(set(firsts))
    assert all(before.stop <= after.first for before, after in pairwise(groups))


def test_offsets_are_those_of_the_text_as_written() -> None:
    text = " 'Cause  “naïve”\n(two)…"

    assert [text[word.start : word.stop] for word in find_written(text)] == ["Cause", "naïve", "two"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I paused — 5 times — and left.", ["I", "paused", "5", "times", "and", "left"]),
        ("— 5 cats", ["5", "cats"]),
        ("Go – 5", ["Go", "5"]),
        ("- 3 eggs\n- 5 kg milk", ["3", "eggs", "5 kg", "milk"]),
        ("• 3 eggs", ["3", "eggs"]),
        ("See * 5 * now", ["See", "5", "now"]),
        ("5 - 3 is 2.", ["5 - 3", "is", "2"]),
    ],
)
def test_a_dash_that_stands_alone_is_no_part_of_a_word(text: str, expected: list[str]) -> None:
    words, said = find_written(text), keys(spoken(text))
    groups = [part for group in find_groups(text, words, said) for part in divide(group, text, words, said, spoken)]

    bare = [without_signs(group, text, words) for group in groups if group.first_spoken < group.stop_spoken]
    assert [text[words[group.first].start : words[group.stop - 1].stop] for group in bare] == expected
