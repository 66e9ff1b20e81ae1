"""Compiled streams have torch's samples, in any chunks, and a stream in progress keeps its decoder."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

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


def test_the_built_in_voice_has_torchs_samples_and_the_same_bits_in_any_chunks(*, in_int16: bool) -> None:
    from s1_mini.codecs.causal import compiled

    codec, codes = open_dac(DEFAULT_MODEL, encodes=False), torch.randint(0, 1024, (1, 8, 12))
    streams = compiled.CompiledStreams(codec, 2)

    whole = streams.push(codes, [0])

    chunks = torch.cat([streams.push(part, [1]) for part in codes.split([1, 4, 7], dim=-1)], dim=-1)
    assert torch.equal(chunks, whole)
    expected = codec.decode(codes)
    noise = float((whole - expected).square().mean() / expected.square().mean())
    assert noise < (1e-6 if in_int16 else 1e-11)  # 60 dB and 110 dB
    # The file has most weights in int8. Those of transposed convolutions have a scale for each input.
    kernels = ["convolve_int16 int16", "convolve_int16 int8"] if in_int16 else ["convolve int8"]
    assert streams.formats == ["convolve float32", *kernels]


def test_the_check_before_use_allows_rounding_and_refuses_larger_differences(
    monkeypatch: pytest.MonkeyPatch, *, in_int16: bool
) -> None:
    from s1_mini.codecs.causal import compiled

    codec = open_dac(DEFAULT_MODEL, encodes=False)
    streams = compiled.CompiledStreams(codec, 1)
    push = streams.push

    def check(factor: float) -> None:
        streams.reset(0)
        monkeypatch.setattr(streams, "push", lambda codes, rows: factor * push(codes, rows))
        compiled.check(codec, streams)

    check(1.002 if in_int16 else 1.00005)
    for factor in (1.004 if in_int16 else 1.0002, math.nan):
        with pytest.raises(RuntimeError, match="does not match"):
            check(factor)
