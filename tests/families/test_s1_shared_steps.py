"""A step looks at what rows have in common only where some of them share a prefix, captured or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions, Prefill, Saved
from s1_mini.families.s1.language_model import LanguageModel
from s1_mini.families.s1.loaded import as_s1
from s1_mini.families.s1.model import S1Model, S1State, SamplingTensors
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.kernels import common_attention, decode_attention
from s1_mini.runtime.loader import load
from s1_mini.types import SamplingParams

SLOTS, SHARED, FRAMES = 8, 70, 12
Steps = list[tuple[int, bool]]  # rows, and whether the step looked


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S1Model:
    """A random model that keeps tables of prefixes although no kernel reads them here."""
    write_random_checkpoint(tmp_path / "tiny", RECIPES["tiny"])
    monkeypatch.setattr(common_attention, "runs_triton", lambda _: True)
    monkeypatch.setattr(decode_attention, "PROGRAMS", 1)  # rows are in one part however few they are
    return as_s1(load(EngineConfig(checkpoint_path=tmp_path / "tiny", device="cpu", precision="float32")).loaded).model


@pytest.fixture
def steps(model: S1Model, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What kinds of steps the model makes from now on."""
    made: Steps = []
    plain = model.step

    def step(state: S1State, sampling: SamplingTensors, span: int, rows: int) -> torch.Tensor:
        made.append((rows, state.common is not None))
        return plain(state, sampling, span, rows)

    monkeypatch.setattr(model, "step", step)
    return made


def begin(stage: LanguageModel, slots: Sequence[int], books: int, saved: Saved | None = None) -> Saved:
    """Let slots begin with one prefix: the saved one, or what the first of them reads."""
    prompt = np.zeros((SHARED + 1, books + 1), np.int64)
    for slot in slots:
        asked = Conditions(SamplingParams(), slot, 0, FRAMES, {})
        stage.begin([Begin(slot, 0, prompt, None, 0, FRAMES, 1, 0, len(prompt), asked)])
        if saved is None:
            stage.prefill([Prefill(slot, 0, SHARED)])
            saved = stage.save(slot, SHARED)
        else:
            stage.load(slot, saved)
    assert saved is not None
    return saved


@torch.inference_mode()
@pytest.mark.parametrize("captured", [True, False])
def test_a_step_looks_only_while_some_of_its_rows_share(model: S1Model, steps: Steps, captured: bool) -> None:
    stage = LanguageModel(model, slots=SLOTS, positions=192)
    if captured:
        stage.make_graphs()
    books, everyone = model.num_codebooks, list(range(SLOTS))
    saved = begin(stage, [0, 1, 2], books)
    for slot in everyone[3:]:
        begin(stage, [slot], books)

    stage.step(everyone, 1)()  # three are too few
    begin(stage, [3], books, saved)
    stage.step(everyone, 1)()
    stage.step(everyone[:4], 1)()
    stage.step(everyone[:2], 1)()
    begin(stage, [0], books)  # leaves them
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

    assert next(rows for rows in range(1, 300) if decode_attention.looks_at_common(rows, 8, 512)) == fewest
