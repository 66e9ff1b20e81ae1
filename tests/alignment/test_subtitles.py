"""Subtitles have all of the text, in cues that fit a screen."""

from __future__ import annotations

import pytest

from s1_mini.alignment.subtitles import LINE_LENGTH, Cue, blank_markup, find_cues, format_subtitles
from s1_mini.alignment.written import find_written
from s1_mini.text.structure import find_breaks
from s1_mini.types import Word


def spoken_at(text: str, *, word_s: float = 0.3, pause_s: float = 0.2) -> list[Word]:
    """Return the words of a text, each as long, with a pause after each sentence."""
    words, now = [], 0.0
    for place in find_written(text):
        words.append(Word(text[place.start : place.stop], place.start, place.stop, now, now + word_s))
        now += word_s + (pause_s if text[place.stop : place.stop + 1] in (".", "!", "?") else 0)
    return words


def test_each_sentence_has_a_cue_with_its_punctuation() -> None:
    text = 'Good morning!  "How are\nyou?" I am.'

    assert find_cues(text, spoken_at(text)) == [
        ("Good morning!", 0.0, 0.6),
        ('"How are you?"', pytest.approx(0.8), pytest.approx(1.7)),
        ("I am.", pytest.approx(1.9), pytest.approx(2.5)),
    ]


def test_long_sentences_are_divided_into_two_lines_each_and_lose_nothing() -> None:
    text = "word " * 60 + "end."

    cues = find_cues(text, spoken_at(text))

    assert " ".join(cue.text for cue in cues) == " ".join(text.split())
    lines = [block.split("\n")[2:] for block in format_subtitles(cues, ".srt").strip().split("\n\n")]
    assert max(len(each) for each in lines) == 2
    assert max(len(line) for each in lines for line in each) <= LINE_LENGTH


def test_no_cue_crosses_a_paragraph_or_a_heading() -> None:
    text = "# One\nTwo three\n\nFour five six"

    cues = find_cues(text, spoken_at(text, pause_s=0), find_breaks(text))

    assert [cue.text for cue in cues] == ["# One", "Two three", "Four five six"]


def test_marks_of_the_structure_are_no_part_of_a_cue() -> None:
    text = "The end.\n\n***\n\n# Chapter Two\n\n- milk\n- eggs\n\n#\n\nIt rained.\n\n---\n"
    words = [word for word in spoken_at(text) if word.text.isalpha()]

    cues = find_cues(text, words, find_breaks(text))

    assert [cue.text for cue in cues] == ["The end.", "Chapter Two", "milk eggs", "It rained."]


@pytest.mark.parametrize(("text", "sizes"), [("Five words are in here. Yes.", [6]), ("word " * 14 + "end.", [8, 7])])
def test_the_last_cue_of_a_paragraph_has_more_than_one_word_if_possible(text: str, sizes: list[int]) -> None:
    cues = find_cues(text, spoken_at(text, word_s=0.49, pause_s=0.1))

    assert [len(cue.text.split()) for cue in cues] == sizes


def test_a_long_pause_and_a_long_time_end_a_cue() -> None:
    text = "one two three"

    assert len(find_cues(text, spoken_at(text, word_s=8.0))) == 3
    words = [Word("one", 0, 3, 0.0, 0.5), Word("two", 4, 7, 2.0, 2.5), Word("three", 8, 13, 2.5, 3.0)]
    assert [cue.text for cue in find_cues(text, words)] == ["one", "two three"]


def test_the_formats_differ_in_header_clock_and_escapes() -> None:
    text = "R&D costs <5%"
    cues = find_cues(text, [Word(text, 0, len(text), 3661.5, 3662.0625)])

    assert format_subtitles(cues, ".srt") == "1\n01:01:01,500 --> 01:01:02,062\nR&D costs <5%\n"
    assert format_subtitles(cues, ".vtt") == ("WEBVTT\n\n1\n01:01:01.500 --> 01:01:02.062\nR&amp;D costs &lt;5%\n")


def test_no_words_have_no_cues() -> None:
    assert find_cues("...", []) == []
    assert format_subtitles([], ".vtt") == "WEBVTT\n"


def test_a_note_precedes_the_cues_of_a_vtt_file_and_srt_has_no_place_for_it() -> None:
    cue = Cue("Yes.", 0.5, 1.0)

    assert format_subtitles([cue], ".vtt", "By a machine").startswith(
        "WEBVTT\n\nNOTE By a machine\n\n1\n00:00:00.500 -->"
    )
    assert format_subtitles([cue], ".srt", "By a machine") == format_subtitles([cue], ".srt")


def word_at(text: str, word: str) -> Word:
    start = text.index(word)
    return Word(word, start, start + len(word), 0.0, 0.3)


@pytest.mark.parametrize(
    ("text_type", "text", "expected"),
    [
        ("ssml", '<speak>Good <break time="1s"/> day</speak>', "Good day"),
        ("marked", "[clara] Good [sic] [pause 1s] day", "Good [sic] day"),
        ("text", "Good <sic> day", "Good <sic> day"),
    ],
)
def test_markup_is_not_part_of_subtitles(text_type: str, text: str, expected: str) -> None:
    words = [word_at(text, word) for word in ("Good", "sic", "day") if word in text]

    blank = blank_markup(text, text_type, words)

    assert len(blank) == len(text)
    assert " ".join(blank.split()) == expected
