"""Latency and underruns are computed from chunk times and samples alone."""

from __future__ import annotations

import numpy as np
import pytest

from s1_mini.bench.clients import Listener, Load, Outcome, percentiles, play

RATE = 1000


def sound(seconds: float, level: float = 0.5) -> np.ndarray:
    return np.full(round(seconds * RATE), level, np.float32)


def test_chunks_that_come_in_time_play_without_a_gap() -> None:
    assert play([(1.0, 0.5), (1.25, 0.5), (2.0, 0.5)]) == ([1.0, 1.5, 2.0], 0)


def test_a_late_chunk_is_an_underrun_and_plays_when_it_comes() -> None:
    chunks = [(1.0, 0.5), (1.75, 0.5), (2.0, 0.5), (3.0, 0.5)]

    assert play(chunks) == ([1.0, 1.75, 2.25, 3.0], 2)


def test_a_buffer_bridges_shorter_delays() -> None:
    chunks = [(1.0, 0.5), (1.5625, 0.5), (2.5, 0.5)]

    assert play(chunks)[1] == 2
    assert play(chunks, 0.125) == ([1.125, 1.625, 2.5], 1)


def test_a_request_is_audible_when_its_first_loud_sample_plays() -> None:
    listener = Listener()
    listener.hear(1.0, sound(0.25, 0.009), RATE)
    listener.hear(1.5, np.concatenate([sound(0.125, -0.009), sound(0.125, -0.02)]), RATE)
    listener.hear(1.6, sound(0.0), RATE)
    outcome = listener.outcome(2.0, late_s=0.25, is_cut=False)

    assert outcome.first_byte_s == 1.0
    assert outcome.audible_s == 1.625, "the second chunk came 0.25 s after the first was over"
    assert outcome.audio_s == 0.5
    assert outcome.real_time_factor == 4.0
    assert (outcome.underruns, outcome.underruns_buffered, outcome.late_s) == (1, 1, 0.25)


def test_silence_is_never_audible_and_missing_audio_is_a_failure() -> None:
    silent, mute = Listener(), Listener()
    silent.hear(1.0, sound(0.5, 0.0), RATE)
    mute.hear(1.0, sound(0.0), RATE)

    assert silent.outcome(2.0, is_cut=False).audible_s is None
    assert silent.outcome(2.0, is_cut=False).failure is None
    assert mute.outcome(2.0, is_cut=False).failure == "no_sound"


def test_a_failed_request_counts_in_no_figure() -> None:
    broken = Listener()
    broken.hear(9.0, sound(0.5), RATE)
    outcomes = [Outcome(1.0, 0.25, None, 0.5), broken.outcome(9.0, failure="queue_full", is_cut=False)]
    figures = Load("", 2, outcomes=outcomes).figures

    assert outcomes[1] == Outcome(9.0, failure="queue_full")
    assert figures["first_byte_ms"] == {"p50": 250.0, "p95": 250.0, "p99": 250.0}
    assert figures["real_time_factor"]["p50"] == 2.0
    assert figures["audible_ms"] == {"p50": None, "p95": None, "p99": None}


def test_percentiles_are_interpolated() -> None:
    assert percentiles([*range(101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert percentiles([3.0, None, 1.0]) == pytest.approx({"p50": 2.0, "p95": 2.9, "p99": 2.98})
    assert percentiles([]) == {"p50": None, "p95": None, "p99": None}
