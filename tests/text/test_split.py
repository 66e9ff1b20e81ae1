"""Splitting text: nothing is lost, no part is too large, and cuts are at natural pauses."""

import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import ParameterError
from s1_mini.text.split import EarlyStart, split, split_arriving

WRITING = st.text(st.sampled_from('aaaabcÉ字你。！？，、.!?;:,…—"”“»)( \n   １👍🏽\u200d\u0301🇩🇪'), max_size=400)
WRITTEN_CHARACTERS = (
    "e\u0301\u0323",
    "👍🏽",
    "👩\u200d👩\u200d👧",
    "🇩🇪",
    "🏴\U000e0067\U000e0062\U000e007f",
    "क्षि",
    "น้ำ",
)
ANYTHING = st.text(max_size=300)


@given(WRITING | ANYTHING, st.integers(4, 300))
def test_every_piece_keeps_the_limit_and_holds_something(text, max_bytes):
    pieces = split(text, max_bytes)

    assert all(0 < len(piece.encode()) <= max_bytes for piece in pieces)
    assert all(piece == piece.strip() for piece in pieces)
    assert split(text, max_bytes) == pieces


@given(WRITING | ANYTHING, st.integers(4, 300))
def test_nothing_but_white_space_at_the_cuts_is_lost(text, max_bytes):
    flat = " ".join(text.split())

    for piece in split(text, max_bytes):
        assert flat.startswith(piece)
        flat = flat[len(piece) :].removeprefix(" ")
    assert flat == ""


@given(st.lists(st.sampled_from([*WRITTEN_CHARACTERS, "a", "字", "，", "。", " "]), max_size=200), st.integers(50, 300))
def test_no_grapheme_is_split(characters, max_bytes):
    pieces = split("".join(characters), max_bytes)

    borders = set(accumulate(len(character) for character in characters if character != " "))
    assert borders.issuperset(accumulate(len(piece.replace(" ", "")) for piece in pieces))


@pytest.mark.parametrize(
    "text",
    [
        "One is here. | Two is here! | Three is it? | Four is it?!",
        'He said "stop it." | Then we had to go.',
        "“I will not go.” | “You will, you will.” | (He went there.) | [They laughed.]",
        "Das war „so schön.“ | Dann ging er fort.",
        "Il a dit « c’est bon ! » | Puis il est parti.",
        "I waited for long… | Nobody ever came.",
        "we write small here. | nobody minds that. | do you mind it?",
        "क्या हाल है यहाँ। | सब ठीक है यहाँ।",
        "No. I will not do. | Yes, I say yes now.",
        # Marks within a sentence.
        "I met Dr. Who, Mr. X and Mrs. Peel on St. Ives Rd. 5 with Prof. Bells. | Nobody else was to be seen there.",
        "The works of J. R. R. Tolkien and J.K. Rowling are known. | They are sold in all of the U.S. and beyond.",
        "Fruit, e.g. apples, i.e. Braeburn, is good vs. Cake. | Pears, etc. are good as well as plums.",
        "It is 3.14 or 10.30 or 1.000.000, at 7.15 sharp. | See www.example.com/a.b?c=d!e and No. 5 then.",
        "It was ... well ... a long time ago… and yet... so near. | Wait . . . what was that thing over there?",
        '"Stop!" he said. | "Why?" she asked.',
        "We came (at last!) and slept. | Then we ate (what else?) bread.",
        "1. Take the first thing. | 2. Take the second thing.",
        "Das ist z. B. gut, d.h. bzw. Gut. | Es ist ca. 5 Uhr, s. Abb. 3.",
    ],
)
def test_a_sentence_ends_at_its_mark_and_what_closes_after_it_and_at_no_mark_within(text):
    """The sentences, between bars, are each over half the limit: no two of them fit into one part."""
    longest = max(len(part.encode()) for part in text.split(" | "))

    assert split(text.replace(" | ", " "), longest) == text.split(" | ")


URL = "https://example.com/" + "x" * 160
SENTENCES = "One two. Three four. Five six. Seven eight."


@pytest.mark.parametrize(
    ("text", "max_bytes", "pieces"),
    [
        # A full-width mark ends a sentence without a space.
        ("今天很好。我们走吧！", 18, ["今天很好。", "我们走吧！"]),
        ("“走吧！”他说。“好的。”她说。", 18, ["“走吧！”", "他说。", "“好的。”", "她说。"]),
        ("「はい。」そう言った。", 18, ["「はい。」", "そう言った。"]),
        # Sentences share a part while they fit.
        (SENTENCES, 20, ["One two. Three four.", "Five six.", "Seven eight."]),
        (SENTENCES, 200, [SENTENCES]),
        # A paragraph ends its part.
        (
            "Chapter One\n\nIt was a dark night.\n\nIt rained.",
            200,
            ["Chapter One", "It was a dark night.", "It rained."],
        ),
        # A sentence that is too long is cut into similar parts: after clauses, or at spaces, or between characters.
        (
            "The first part is here, the second part comes here; the third part is the very last.",
            60,
            ["The first part is here, the second part comes here;", "the third part is the very last."],
        ),
        (
            "We waited until the evening, but nobody came to the door or called us, so we left.",
            60,
            ["We waited until the evening,", "but nobody came to the door or called us, so we left."],
        ),
        (f"Look at {URL} and tell me what you think", 194, [f"Look at {URL}", "and tell me what you think"]),
        ("word " * 4, 10, ["word word", "word word"]),
        ("a" * 25, 10, ["a" * 9, "a" * 8, "a" * 8]),
        ("", 200, []),
        (" \n\n ", 200, []),
    ],
)
def test_pieces_are_cut_at_clauses(text, max_bytes, pieces):
    assert split(text, max_bytes) == pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "he said that the old man had left the town before the winter came and that nobody knew where he was",
            [
                "he said that the old man had left the town",
                "before the winter came",
                "and that nobody knew where he was",
            ],
        ),
        (
            "the people who live in the house at the end of the road have a dog which barks at night",
            ["the people who live in the house at the end", "of the road have a dog which barks at night"],
        ),
    ],
)
def test_words_without_marks_are_cut_before_conjunctions_and_relative_pronouns(text, pieces):
    assert split(text, 50) == pieces


@pytest.mark.parametrize(
    "pieces",
    [
        [
            "prices eased to two point four percent year over year",
            "in Q three twenty-four from two point nine percent in Q two",
        ],
        [
            "the F T S E one hundred closed",
            "at eight thousand two hundred eighty-one point two two with a gain of half a percent",
        ],
        [
            "Bake it at three hundred fifty degrees Fahrenheit",
            "(one hundred seventy-five degrees Celsius) for at least twenty minutes.",
        ],
        [
            "a seven point one magnitude quake hit thirty-five kilometers",
            "southeast of Tokyo at nine forty-two local time",
        ],
    ],
)
def test_a_number_stays_with_its_words(pieces):
    assert split(" ".join(pieces), 100) == pieces


def test_the_parts_of_a_long_sentence_are_similar_in_size():
    numbers = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " * 5

    for number in range(101, 400):
        sizes = [len(piece) for piece in split(numbers[:number], 100)]
        assert max(sizes) - min(sizes) <= 40, number


@pytest.mark.parametrize(
    "text", ["The time is 10:30:45 or so and 1,000,000 went by", "他有很多朋友，他们都很好、很快乐"]
)
def test_marks_within_numbers_are_no_clauses_but_wide_marks_are(text):
    pieces = split(text, 30)

    assert all(re.search(r"\d$", piece) is None or piece.endswith("45") for piece in pieces[:-1])
    assert text.isascii() or pieces[0].endswith("，")


@pytest.mark.parametrize("character", WRITTEN_CHARACTERS)
def test_characters_of_several_code_points_stay_whole(character):
    pieces = split(character * 40, 50)

    assert len(pieces) > 1
    assert all(piece == character * (len(piece) // len(character)) for piece in pieces)


def test_a_character_larger_than_a_piece_is_cut_rather_than_refused():
    text = "a" + "\u0301" * 100

    assert "".join(split(text, 50)) == text


def test_a_long_sentence_leaves_no_tiny_part():
    for length in range(201, 420):
        pieces = split(("word " * 100)[:length], 200)
        assert min(len(piece) for piece in pieces) >= 45, length


def test_a_limit_below_one_character_is_refused():
    with pytest.raises(ParameterError, match="max_bytes: must be at least 4"):
        split("a", 3)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("", "")),
        ("Hel", ("", "Hel")),
        ("Hello. ", ("", "Hello. ")),
        ("Hello. How", ("Hello. ", "How")),
        ("One. Two. Thr", ("One. Two. ", "Thr")),
        ("# One\n\nTwo", ("# One\n\n", "Two")),
        ("One\n- Two\n- Thr", ("One\n- Two\n", "- Thr")),
        ("One\n***", ("", "One\n***")),
        ("One.\n\n***\n\nTwo", ("One.\n\n***\n\n", "Two")),
        ("He met Dr. Smith", ("", "He met Dr. Smith")),
        ("It costs 3.14 now and", ("", "It costs 3.14 now and")),
        ("Hello ", ("", "Hello ")),
        ("1. O", ("", "1. O")),
    ],
)
def test_of_text_that_is_still_arriving_only_complete_sentences_are_returned(text: str, parts: tuple[str, str]) -> None:
    assert split_arriving(text) == parts


def test_text_that_arrives_letter_by_letter_loses_nothing() -> None:
    text, said, rest = "Dr. Smith is in. He waits! Why? Nobody knows", [], ""
    for letter in text:
        whole, rest = split_arriving(rest + letter)
        said += [whole] if whole else []

    assert "".join([*said, rest]) == text


@pytest.mark.parametrize(
    ("start", "text", "parts"),
    [
        (EarlyStart(), "Good evening, everybody, and ", ("", "Good evening, everybody, and ")),
        (EarlyStart(at_clause=True), "Good evening, everybody, and ", ("Good evening, everybody,", "and ")),
        (EarlyStart(at_clause=True), "Well, ", ("", "Well, ")),
        (EarlyStart(at_clause=True), "早上好，今天", ("早上好，", "今天")),
        (EarlyStart(at_clause=True), "Good evening (all), I", ("Good evening (all),", "I")),
        (EarlyStart(at_clause=True), "He came home — late", ("He came home —", "late")),
        (EarlyStart(at_clause=True), "On the 5th of May, 2026", ("", "On the 5th of May, 2026")),
        (EarlyStart(at_clause=True), "In the year 2026, I", ("", "In the year 2026, I")),
        (EarlyStart(num_words=3), "I think so", ("", "I think so")),
        (EarlyStart(num_words=3), "I think so ", ("I think so", "")),
        (EarlyStart(num_words=3), "I have about 5 ", ("", "I have about 5 ")),
        (EarlyStart(num_words=3), "I met old Dr. Smith", ("I met old", "Dr. Smith")),
        (EarlyStart(at_clause=True, num_words=4), "Dear old friends, I am ", ("Dear old friends,", "I am ")),
    ],
)
def test_an_early_start_cuts_after_a_clause_or_some_words_and_at_no_number(
    start: EarlyStart, text: str, parts: tuple[str, str]
) -> None:
    assert start.cut(text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello.", ("Hello.", "")),
        ("Hello Dr.", ("Hello", "Dr.")),
        ("Well,", ("Well,", "")),
        ("Good mor", ("Good", "mor")),
        ("Good", ("", "Good")),
        ("Well, I have 5 ", ("Well, I", "have 5 ")),
        ("早上好，", ("早上好，", "")),
    ],
)
def test_after_a_pause_all_is_spoken_but_a_word_that_may_go_on(text: str, parts: tuple[str, str]) -> None:
    assert EarlyStart(pause_s=1).cut(text, has_paused=True) == parts


@given(st.text(alphabet="ab ,.5—，…", max_size=60), st.booleans(), st.integers(0, 4), st.booleans())
def test_an_early_start_loses_nothing_but_white_space_at_the_cut(
    text: str, at_clause: bool, num_words: int, has_paused: bool
) -> None:
    parts = EarlyStart(at_clause=at_clause, num_words=num_words).cut(text, has_paused=has_paused)

    assert "".join("".join(parts).split()) == "".join(text.split())
