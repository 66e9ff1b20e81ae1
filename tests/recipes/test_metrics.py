"""The evaluation metrics are reliable: word errors accept any valid reading, and DNSMOS detects noise."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.voice.words import compare, normalise, places
from s1_mini import EngineConfig, ProductionTTSEngine


@pytest.mark.parametrize(
    ("text", "hypothesis"),
    [
        ("It was 1984.", "it was nineteen eighty four"),
        ("It was 1984.", "it was one thousand nine hundred eighty four"),
        ("It was 1905.", "it was nineteen oh five"),
        ("It costs $3.50.", "it costs three dollars fifty cents"),
        ("It costs $3.50.", "it costs three dollars and fifty cents"),
        ("It costs $1.", "it costs one dollar"),
        ("At 10:45 or 9:05.", "at ten forty five or nine oh five"),
        ("At 8 am.", "at eight a. m."),
        ("May 21, the 3rd.", "may twenty first the third"),
        ("12,500 of 2.5 are 75%.", "twelve thousand five hundred of two point five are seventy five percent"),
        ("Room 608 of the BBC.", "room six oh eight of the b. b. c."),
        ("Dr. Who's here, isn't he?", "doctor whos here isn't he"),
        ("The twenty-first café; goodbye!", "the twenty first cafe good bye"),
    ],
)
def test_every_accepted_reading_is_free_of_errors(text, hypothesis):
    assert compare(text, hypothesis).word_errors == 0


@pytest.mark.parametrize(
    ("hypothesis", "errors"),
    [("the cat sat", 0), ("the bat sat", 1), ("the sat", 1), ("the cat sat down", 1), ("", 3), ("a b c d e", 5)],
)
def test_a_substituted_a_missing_and_an_added_word_are_one_error_each(hypothesis, errors):
    comparison = compare("The cat sat.", hypothesis)

    assert (comparison.word_errors, comparison.words) == (errors, 3)


def test_the_wrong_number_is_an_error_in_all_its_readings():
    comparison = compare("It was 1984.", "it was nineteen eighty five")

    assert (comparison.word_errors, comparison.words) == (1, 5)


@settings(deadline=None)
@given(st.integers(0, 10**9 - 1), st.integers(0, 23), st.integers(0, 59), st.integers(0, 99))
def test_all_numbers_times_and_sums_can_be_read(number, hour, minute, cents):
    for text in (str(number), f"{number:,}", f"{hour}:{minute:02d}", f"${number}.{cents:02d}"):
        for readings in places(text):
            for reading in readings:
                assert compare(text, " ".join(reading)).word_errors == 0
                assert normalise(" ".join(reading)) == reading


def test_noise_is_rated_below_clean_speech() -> None:
    pytest.importorskip("onnxruntime", reason="runs DNSMOS: pip install -r recipes/voice/requirements.txt")
    pytest.importorskip("speechmos", reason="holds the DNSMOS network: pip install -r recipes/voice/requirements.txt")
    pytest.importorskip("librosa", reason="P.808 needs it: pip install -r recipes/voice/requirements.txt")
    from recipes.voice.ears import overall_quality, p808

    with ProductionTTSEngine(EngineConfig(device="cpu")) as engine:
        speech = engine.generate("We went for a long walk after dinner.", seed=1)
    wave = soxr.resample(speech.audio, speech.sample_rate, 16_000)
    with_noise = wave + np.random.default_rng(0).normal(0, 0.025, len(wave))
    for rate in (overall_quality, p808):
        clean = rate(wave)
        assert 1 < rate(with_noise) < clean - 0.3 < 5
        assert rate(wave) == clean
        assert np.isnan(rate(wave[:0]))
