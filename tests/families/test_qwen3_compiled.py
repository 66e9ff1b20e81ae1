"""Compiled frames of Qwen3-TTS match torch's, and do not depend on the other rows of a call.

The first run on a machine compiles for about ten seconds, as every engine does, and fills the compile cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.qwen3.kernels.sampling import CodeSampling, sample_code
from s1_mini.families.qwen3.model import Qwen3Model
from s1_mini.types import SamplingParams, Voice
from tests.families.qwen3_room import clone, opened, written

pytest.importorskip("numba", reason="numba has no wheels for this platform")
pytestmark = [pytest.mark.usefixtures("no_grad"), pytest.mark.long]

SPAN, FRAMES = 128, 30
OPTIONS = (
    SamplingParams(0.9, 1.0, 1.05, top_k=50),
    SamplingParams(1.2, 0.7, 1.3, top_k=5),
    SamplingParams(0.0, 1.0, 1.5),
)
KINDS = {
    "custom_voice": {},
    "base": {"text_layout": "step", "predictor_top_p": 0.8, "predictor_top_k": 0, "predictor_temperature": 1.1},
}


def start(stage: LanguageModel, model: Qwen3Model, slot: int, voices: list[Voice]) -> None:
    """Prefill a prompt with its own seed and options in a slot."""
    prompt = model.prompt("Say this, please." * (slot + 1), voices)
    length = len(prompt.items)
    conditions = Conditions(OPTIONS[slot], seed=slot, utterance=0, max_steps=FRAMES, voice=prompt.voice, text_start=3)
    begin = Begin(slot, 0, prompt.items, None, 0, FRAMES, 1, context=0, consumes=length, conditions=conditions)
    stage.begin([begin])
    stage.prefill([Prefill(slot, 0, length - 1)])


def make(directory: Path, kind: str = "custom_voice", *, compiled: bool) -> LanguageModel:
    loaded = opened(directory, **KINDS[kind])
    stage = LanguageModel(loaded.model, slots=3, positions=SPAN)
    if compiled:
        work = stage.compilable()
        assert work is not None
        work.use()
    for slot in range(3):
        start(stage, loaded.model, slot, [clone(loaded)] if kind == "base" else [])
    return stage


def codes(stage: LanguageModel, slots: list[int]) -> np.ndarray:
    return np.stack(stage.step(slots, 1)().values)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_frames_are_those_of_torch(kind: str, tmp_path: Path) -> None:
    directory = written(tmp_path, kind, seed=5)
    plain, compiled = make(directory, kind, compiled=False), make(directory, kind, compiled=True)

    for _ in range(FRAMES - 1):
        expected, found = plain.step([0, 1, 2], 1)(), compiled.step([0, 1, 2], 1)()
        np.testing.assert_array_equal(np.stack(found.values), np.stack(expected.values))
        assert (found.stops, found.valid) == (expected.stops, expected.valid)

    torch.testing.assert_close(compiled.state.cache.keys[..., :-1, :], plain.state.cache.keys[..., :-1, :])
    torch.testing.assert_close(compiled.state.cache.values[..., :-1, :], plain.state.cache.values[..., :-1, :])
    assert torch.equal(compiled.state.seen, plain.state.seen)
    assert torch.equal(compiled.state.tokens, plain.state.tokens)


def test_a_row_is_the_same_to_the_bit_alone_and_among_others(tmp_path: Path) -> None:
    directory = written(tmp_path, "custom_voice", seed=5)
    together, apart = make(directory, compiled=True), make(directory, compiled=True)

    for _ in range(6):
        codes(together, [0, 1, 2])
        for slot in (2, 0, 1):
            codes(apart, [slot])

    assert torch.equal(together.state.cache.keys, apart.state.cache.keys)
    assert torch.equal(together.state.depth_cache.values, apart.state.depth_cache.values)


def some(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("coarse", [False, True])
def test_compiled_sampling_is_that_of_torch_for_all_options(coarse: bool) -> None:
    from s1_mini.families.qwen3.kernels.frame import sample

    rows, size = 400, 65
    logits, random, row = 8 * some(rows, size) - 4, some(rows, 3), torch.arange(rows)
    if coarse:  # many are equal
        logits = logits.round()
    sampling = CodeSampling(
        torch.where(row % 5 == 0, 0.0, random[:, 0] * 1.5),
        torch.where(row % 3 == 0, 0, (random[:, 1] * 80).long()),
        torch.where(row % 2 == 0, 1.0, random[:, 2]),
        some(rows, 1, 2),
        torch.zeros(rows, dtype=torch.int64),
    )
    frames = torch.zeros(rows, 5, dtype=torch.int64)
    sample_code(logits, some(size, 4), frames, sampling, 1, None)

    temperature, top_k, top_p, uniforms = (part.numpy() for part in sampling[:4])
    found = [
        sample(logits[index].numpy(), temperature[index], top_k[index], top_p[index], uniforms[index, 0, 1])
        for index in range(rows)
    ]

    differing = (torch.tensor(found) != frames[:, 2]).count_nonzero()
    assert differing <= 1, "more than one random number lies between two codes"
