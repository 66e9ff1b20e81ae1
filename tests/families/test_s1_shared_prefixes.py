"""S1's frames are the same whether rows of a voice share its prefix or each reads its own copy.

The kernels themselves are tested on a GPU, or in Triton's interpreter where it is installed (TRITON_INTERPRET=1,
-m gpu).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from kernel_checks import DEVICE, INTERPRETED
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions, Prefill, Saved
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.kernels import common_attention, decode_attention
from s1_mini.runtime.loader import load
from s1_mini.types import SamplingParams

SLOTS, SHARED, FRAMES = 8, 80, 12
Steps = list[tuple[int, bool]]  # rows, and whether the step checked for sharing


def open_model(directory: Path, patch: pytest.MonkeyPatch, device: str) -> S1Model:
    """A random model of ten codebooks, as published, that keeps prefix tables on any device."""
    write_random_checkpoint(directory, RECIPES["tiny"])
    patch.setattr(common_attention, "runs_triton", lambda _: True)
    patch.setattr(decode_attention, "PROGRAMS", 1)  # rows are in one part however few there are
    return load(EngineConfig(checkpoint_path=directory, device=device, precision="float32")).loaded.model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S1Model:
    return open_model(tmp_path / "tiny", monkeypatch, "cpu")


@pytest.fixture
def steps(model: S1Model, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Rows of each step that the model runs from now on, and whether they share a prefix."""
    made: Steps = []
    plain = model.step

    def step(state: S1State, sampling: SamplingTensors, span: int, rows: int) -> torch.Tensor:
        made.append((rows, state.common is not None))
        return plain(state, sampling, span, rows)

    monkeypatch.setattr(model, "step", step)
    return made


def prompt_of(model: S1Model, number: int) -> np.ndarray:
    """The same `SHARED` positions, then positions derived from the number, [S, K + 1]."""
    parts = []
    for seed, length in ((0, SHARED), (number, 5 + number)):
        codes = np.random.default_rng(seed).integers(0, 32, (length, model.num_codebooks))
        parts.append(np.concatenate((codes[:, :1] + model.tokenizer.semantic_begin, codes), axis=1))
    return np.concatenate(parts)


def begin(model: S1Model, stage: LanguageModel, numbers: dict[int, int], saved: Saved | None = None) -> Saved:
    """Prefill prompts of these numbers in slots; their prefix is `saved`, or the first of them saves it."""
    for slot, number in numbers.items():
        prompt, asked = prompt_of(model, number), Conditions(SamplingParams(), number, 0, FRAMES, {})
        stage.begin([Begin(slot, 0, prompt, None, 0, FRAMES, 1, 0, len(prompt), asked)])
        if saved is None:
            stage.prefill([Prefill(slot, 0, SHARED)])
            saved = stage.save(slot, SHARED)
        else:
            stage.load(slot, saved)
        stage.prefill([Prefill(slot, SHARED, len(prompt) - 1)])
    assert saved is not None
    return saved


def speak(stage: LanguageModel, slots: Iterable[int]) -> np.ndarray:
    return np.concatenate([np.stack(stage.step(list(slots), 1)().values).ravel() for _ in range(3)])


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs an NVIDIA GPU, or Triton's interpreter")
@torch.inference_mode()
def test_rows_that_share_a_prefix_generate_the_same_as_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(tmp_path / "ten", monkeypatch, DEVICE)
    monkeypatch.setattr(decode_attention, "runs_triton", lambda _: True)
    said = []
    for shares in (True, False):
        stage = LanguageModel(model, slots=SLOTS, positions=192)
        stage.shares_prefixes = shares
        stage.make_graphs()
        saved = begin(model, stage, {slot: 1 + slot for slot in range(6)})
        heard = speak(stage, range(6))
        assert stage.state.common is not None
        assert (stage.state.common.starts[:6] == (64 if shares else 0)).all()
        # Slot 0, the first with this prefix, gets another utterance of the same voice.
        begin(model, stage, {0: 10, 6: 11}, saved)
        said.append(np.concatenate([heard, speak(stage, [0, 2, 3, 4, 6])]))

    assert np.array_equal(*said)


@torch.inference_mode()
@pytest.mark.parametrize("captured", [True, False])
def test_a_step_checks_for_sharing_only_while_some_rows_share(model: S1Model, steps: Steps, captured: bool) -> None:
    stage = LanguageModel(model, slots=SLOTS, positions=192)
    if captured:
        stage.make_graphs()
    everyone = list(range(SLOTS))
    saved = begin(model, stage, {0: 0, 1: 1, 2: 2})
    for slot in everyone[3:]:
        begin(model, stage, {slot: slot})

    stage.step(everyone, 1)()  # three are too few
    begin(model, stage, {3: 3}, saved)
    stage.step(everyone, 1)()
    stage.step(everyone[:4], 1)()
    stage.step(everyone[:2], 1)()
    begin(model, stage, {0: 0})  # leaves the group
    stage.step(everyone, 1)()

    assert steps == [(8, False), (8, True), (4, True), (2, False), (8, False)]
    assert stage.replay(SLOTS) == captured
    assert steps[5:] == [(8, False)] * captured


@torch.inference_mode()
@pytest.mark.parametrize("shares", [True, False])
def test_only_numbers_of_rows_that_may_share_have_two_graphs(model: S1Model, shares: bool) -> None:
    stage = LanguageModel(model, slots=SLOTS, positions=192)
    stage.shares_prefixes = shares
    stage.make_graphs()

    assert stage._steps is not None
    twice = {(4, True), (8, True)} if shares else set()
    assert set(stage._steps._graphs) == {(1, False), (2, False), (4, False), (8, False)} | twice


@pytest.mark.parametrize(("programs", "fewest"), [(256, 32), (1, 4)])
def test_rows_may_share_as_soon_as_they_are_in_one_part(
    monkeypatch: pytest.MonkeyPatch, programs: int, fewest: int
) -> None:
    monkeypatch.setattr(decode_attention, "PROGRAMS", programs)

    assert next(rows for rows in range(1, 300) if decode_attention.reads_common(rows, 8, 512)) == fewest
