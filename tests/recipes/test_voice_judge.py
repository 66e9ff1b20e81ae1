"""The voice evaluation: its counts, and the same sentences for every voice."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from recipes.voice.judge import COLUMNS, Said, judge, sentences, table
from recipes.voice.texts import held_out_sentences

RATE = 24_000


class Ears:
    """Recognises every word but the last, and rates voices of equal length as identical."""

    def naturalness(self, wave: np.ndarray, rate: int) -> float:
        return 4.0 if len(wave) > rate else 2.0

    quality = opinion = naturalness

    def words(self, _wave: np.ndarray, _rate: int) -> str:
        return "one two three"

    def similarity(self, wave: np.ndarray, other: np.ndarray, _rate: int) -> float:
        return float(len(wave) == len(other))


def tone(seconds: float, amplitude: float) -> np.ndarray:
    return (amplitude * np.sin(2 * np.pi * 997 * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def test_recognised_speech_is_counted_by_words_and_by_utterances() -> None:
    said = [
        Said("One two three four.", "anna", tone(2.0, 0.22), RATE, took_s=1.0),  # -16.2 LUFS
        Said("One two three.", "anna", tone(2.0, 0.05), RATE, took_s=1.0, ended=False),
        Said("One two three.", "alan", tone(0.5, 0.22), RATE, took_s=0.25),
        Said("One two three.", "", tone(0.5, 0.22), RATE, reference=tone(0.7, 0.2)),
    ]

    figures = judge(said, cast("Any", Ears()))

    assert figures["word_error"] == pytest.approx(100 / 13)
    assert figures["without_end"] == figures["too_loud_or_soft"] == 25
    assert (figures["distillmos"], figures["lowest"]) == (3.0, 2.0)
    assert figures["similarity"] == 0.5  # Anna matches herself, the clone does not match its reference
    assert figures["real_time_factor"] == pytest.approx(2.25 / 5)
    rows = table({"old": figures, "new": figures}).splitlines()
    assert len(rows) == 4
    assert all(row.count("|") == len(COLUMNS) + 2 for row in rows)


def test_sentences_are_held_out_and_the_same_for_every_voice() -> None:
    chosen = sentences(30)

    every = {text for name, room in held_out_sentences().items() if name != "reference" for text in room}
    assert chosen == sentences(30)
    assert len(set(chosen)) == 30
    assert set(chosen) <= every
