"""Times of words of an utterance: from clear scores, with silences, and of an utterance that was cut."""

from __future__ import annotations

import numpy as np
import pytest

from s1_mini.alignment.head import AlignmentHead
from s1_mini.alignment.times import Interval, LiveTimes, Span, after_silences, find_sounds, find_spans, whole_times

HEAD = AlignmentHead(0, 0, shift_ms=20, pause_shift_ms=100, end_shift_ms=150)
FRAME_S, RATE = 0.05, 8000
TEXT = "One two, three."


def byte_ends(text: str) -> np.ndarray:
    return np.arange(1, len(text.encode()) + 1)


def steady(text: str, frames_per_token: int = 2) -> np.ndarray:
    """Scores of a head that stays at each byte of a text for the same number of frames."""
    count = len(text.encode())
    return np.repeat(np.eye(count, dtype=np.float32) * 12, frames_per_token, axis=0)


def live(scores: np.ndarray, *, was_cut: bool = False) -> list[Interval]:
    times = LiveTimes(find_spans(TEXT, byte_ends(TEXT)), scores.shape[1], HEAD, FRAME_S)
    known = [interval for row in scores for interval in times.push(row)]
    return known + times.finish(len(scores) * FRAME_S, was_cut=was_cut)


def whole(scores: np.ndarray, wave: np.ndarray, *, was_cut: bool = False) -> list[Interval]:
    spans = find_spans(TEXT, byte_ends(TEXT))
    return whole_times(scores, spans, wave, sample_rate=RATE, head=HEAD, frame_s=FRAME_S, was_cut=was_cut)


def test_words_are_found_in_tokens_of_any_size() -> None:
    assert find_spans("Nâo, it's ok", byte_ends("Nâo, it's ok")) == [
        Span(0, 3, True),
        Span(6, 9, False),
        Span(11, 12, False),
    ]
    assert find_spans("the cat", np.array([3, 7])) == [Span(0, 0, False), Span(1, 1, False)]
    assert find_spans("twenty-one", byte_ends("twenty-one")) == [Span(0, 5, False), Span(7, 9, False)]


def test_a_word_begins_after_the_frames_before_it_and_ends_where_the_next_one_begins() -> None:
    first, second, third = live(steady(TEXT))

    assert first == pytest.approx((0.02, 0.42), abs=0.05)
    assert second == pytest.approx((0.42, 0.80), abs=0.05)  # its last letter is left 0.1 s before
    assert third == pytest.approx((0.92, 1.50), abs=0.05)


def test_live_times_do_not_depend_on_later_frames() -> None:
    scores, other = steady(TEXT), steady(TEXT)
    other[20:] = np.random.default_rng(0).normal(0, 3, other[20:].shape)

    assert live(other)[:2] == live(scores)[:2]


def test_silences_move_the_boundaries_near_them() -> None:
    wave = np.random.default_rng(0).uniform(-1, 1, round(1.5 * RATE)).astype(np.float32)
    wave[: round(0.1 * RATE)] = 0
    wave[round(0.75 * RATE) : round(0.95 * RATE)] = 0
    wave[round(1.4 * RATE) :] = 0

    first, second, third = whole(steady(TEXT), wave)

    assert first == pytest.approx((0.1, 0.42), abs=0.02)
    assert second == pytest.approx((0.42, 0.75), abs=0.02)
    assert third == pytest.approx((0.95, 1.4), abs=0.02)


def test_a_breath_after_the_last_word_is_not_part_of_it() -> None:
    scores = np.concatenate((steady(TEXT), np.repeat(steady(TEXT)[-1:], 14, 0)))
    wave = np.random.default_rng(0).uniform(-1, 1, round(len(scores) * FRAME_S * RATE)).astype(np.float32)

    assert whole(scores, wave)[-1] == pytest.approx((0.92, 1.55), abs=0.05)


def test_a_last_word_whose_estimated_end_is_before_its_start_ends_with_the_audio() -> None:
    scores = np.concatenate((steady(TEXT), np.repeat(steady(TEXT)[-1:], 14, 0)))
    wave = np.random.default_rng(0).uniform(-1, 1, round(len(scores) * FRAME_S * RATE)).astype(np.float32)
    wave[: round(1.7 * RATE)] = 0

    assert whole(scores, wave)[-1] == pytest.approx((1.7, 2.2), abs=0.05)


def test_words_that_a_cut_utterance_has_not_begun_have_no_times() -> None:
    scores = steady(TEXT)[:12]
    wave = np.random.default_rng(0).uniform(-1, 1, round(0.6 * RATE)).astype(np.float32)

    assert len(live(scores, was_cut=True)) == len(whole(scores, wave, was_cut=True)) == 2
    assert len(live(scores)) == len(whole(scores, wave)) == 3


def test_intervals_are_in_order_and_within_the_audio_whatever_the_scores_are() -> None:
    rng = np.random.default_rng(0)
    for num_frames in (1, 2, 7, 60):
        scores = rng.normal(0, 5, (num_frames, len(TEXT))).astype(np.float32)
        wave = rng.uniform(-1, 1, round(num_frames * FRAME_S * RATE)).astype(np.float32)
        for times in (live(scores), whole(scores, wave)):
            edges = [edge for interval in times for edge in interval]
            assert edges == sorted(edges)
            assert edges[0] >= 0
            assert edges[-1] <= num_frames * FRAME_S + 1e-9


def test_words_that_begin_in_a_silence_begin_after_it() -> None:
    sounds = [Interval(0.0, 0.0), Interval(0.1, 0.5), Interval(0.8, 1.0)]
    words = [Interval(0.02, 0.3), Interval(0.3, 0.4), Interval(0.46, 0.9), Interval(0.7, 0.75), Interval(0.9, 1.0)]

    assert after_silences(words, sounds) == [
        Interval(0.1, 0.3),
        Interval(0.3, 0.4),
        Interval(0.8, 0.9),
        Interval(0.75, 0.75),
        Interval(0.9, 1.0),
    ]


def test_silence_has_no_sounds() -> None:
    assert find_sounds(np.zeros(RATE, np.float32), RATE) == []
    assert find_sounds(np.zeros(3, np.float32), RATE) == []
    assert whole(steady(TEXT), np.zeros(round(1.5 * RATE), np.float32))[-1].end_s <= 1.5
