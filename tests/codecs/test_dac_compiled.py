"""Compiled streams have torch's samples, in any chunks, and a stream in progress keeps its decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from s1_mini.codecs.causal.stage import CausalDecoder
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions
from s1_mini.runtime.loader import load
from s1_mini.types import SamplingParams
from s1_mini.weights.directory import DEFAULT_MODEL
from voice_formats import BOOKS

pytest.importorskip("numba", reason="numba has no wheels for this platform")
pytestmark = pytest.mark.usefixtures("no_grad")

FRAMES, RATE = 4, 2048


def decode(stage: CausalDecoder, slot: int, number: int) -> np.ndarray:
    """Decode one chunk of a stream, with the same codes in every slot."""
    codes = np.random.default_rng(number).integers(0, 64, (FRAMES, BOOKS))
    asked = Conditions(SamplingParams(), seed=0, utterance=0, max_steps=FRAMES, voice={})
    stage.begin([Begin(slot, number, codes, None, number * FRAMES * RATE, 1, FRAMES, 0, FRAMES, conditions=asked)])
    return np.asarray(stage.step([slot], FRAMES)().values[0])


def test_a_stream_keeps_the_decoder_that_it_began_with_and_the_next_has_the_compiled_one(tiny: Path) -> None:
    stage = load(EngineConfig(checkpoint_path=tiny, device="cpu")).loaded.chain(2, 64).stages[1]
    assert isinstance(stage, CausalDecoder)
    plain = [decode(stage, 0, number) for number in (0, 1)]
    decode(stage, 0, 0)

    work = stage.compilable()
    assert work is not None
    work.use()
    begun = decode(stage, 0, 1)
    compiled = [decode(stage, 1, number) for number in (0, 1)]

    np.testing.assert_array_equal(begun, plain[1])
    for number in (0, 1):
        np.testing.assert_allclose(compiled[number], plain[number], atol=3e-6)
    assert not np.array_equal(compiled[1], plain[1]), "both round alike, so this shows nothing"


def test_weights_that_the_file_has_in_eight_bits_stay_in_eight_bits() -> None:
    from s1_mini.codecs.causal.compiled import CompiledStreams

    streams = CompiledStreams(open_dac(DEFAULT_MODEL, encodes=False), 1)

    assert streams.formats == ["float32", "int8"]  # float32 for transposed convolutions, whose scales belong to inputs
