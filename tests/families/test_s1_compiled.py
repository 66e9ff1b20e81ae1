"""Compiled prefill and frames of S1 match torch's, and do not depend on the other rows of a call.

The first run on a machine compiles for about ten seconds, as every engine does, and fills the compile cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.s1.config import Ras
from s1_mini.families.s1.model import S1Model
from s1_mini.types import SamplingParams
from tests.families.s1_room import build

pytest.importorskip("numba", reason="numba has no wheels for this platform")
pytestmark = [pytest.mark.usefixtures("no_grad"), pytest.mark.long]

SPAN, FRAMES = 128, 40  # more frames than the repetition window
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as published": ({}, {}),
    "all that a config may change": (
        {
            "attention_qkv_bias": True,
            "attention_o_bias": True,
            "fast_attention_qk_norm": True,
            "attention_qk_norm": False,
            "norm_fastlayer_input": True,
            "scale_codebook_embeddings": False,
            "fast_dim": 64,
            "dim": 36,
            "alignment": {"layer": 1, "head": 2, "shift_ms": 20},
        },
        {"heads": "full", "repetition_mode": "fixed"},
    ),
    "repetition-aware sampling": ({}, {"ras": Ras(window=5, temperature=1.2, top_p=0.95)}),
}


def start(stage: LanguageModel, model: S1Model, slot: int) -> None:
    """Prefill a prompt with its own seed in a slot."""
    prompt = model.prompt("Say this" * (slot + 1)).items
    asked = Conditions(
        SamplingParams(repetition_penalty=1.3, top_k=9),
        seed=slot,
        utterance=0,
        max_steps=FRAMES,
        voice={},
        text_start=3,
    )
    begin = Begin(slot, 0, prompt, None, 0, FRAMES, 1, context=0, consumes=len(prompt), conditions=asked)
    stage.begin([begin])
    stage.prefill([Prefill(slot, 0, len(prompt) - 1)])


def make(model: S1Model, *, compiled: bool) -> LanguageModel:
    stage = LanguageModel(model, slots=3, positions=SPAN)
    if compiled:
        work = stage.compilable()
        assert work is not None
        work.use()
    for slot in range(3):
        start(stage, model, slot)
    return stage


def codes(stage: LanguageModel, slots: list[int]) -> np.ndarray:
    return np.stack(stage.step(slots, 1)().values)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_frames_are_those_of_torch(kind: str, tmp_path: Path) -> None:
    model = build(tmp_path, KINDS[kind][0], **KINDS[kind][1])
    plain, compiled = make(model, compiled=False), make(model, compiled=True)

    for _ in range(FRAMES - 1):
        np.testing.assert_array_equal(codes(compiled, [0, 1, 2]), codes(plain, [0, 1, 2]))

    torch.testing.assert_close(compiled.state.cache.keys[..., :-1, :], plain.state.cache.keys[..., :-1, :])
    torch.testing.assert_close(compiled.state.cache.values[..., :-1, :], plain.state.cache.values[..., :-1, :])
    torch.testing.assert_close(compiled.state.window.history, plain.state.window.history)


def test_compiled_scores_of_the_alignment_head_are_those_of_torch(tmp_path: Path) -> None:
    model = build(tmp_path, {"alignment": {"layer": 1, "head": 2, "shift_ms": 20}})
    plain, compiled = make(model, compiled=False), make(model, compiled=True)

    for _ in range(4):
        expected, found = plain.step([0, 2], 1)().scores, compiled.step([0, 2], 1)().scores
        assert expected.keys() == found.keys() == {0, 2}
        for slot, scores in expected.items():
            offset = found[slot] - scores  # scores are known up to a constant
            np.testing.assert_allclose(offset, np.full_like(offset, offset[0]), atol=1e-4)


def test_a_row_is_the_same_to_the_bit_alone_and_among_others(tmp_path: Path) -> None:
    model = build(tmp_path, {})
    together, apart = make(model, compiled=True), make(model, compiled=True)

    for _ in range(6):
        codes(together, [0, 1, 2])
        for slot in (2, 0, 1):
            codes(apart, [slot])

    assert torch.equal(together.state.cache.keys, apart.state.cache.keys)
    assert torch.equal(together.state.depth_cache.values, apart.state.depth_cache.values)


def test_a_prompt_is_the_same_to_the_bit_in_parts_and_as_a_whole(tmp_path: Path) -> None:
    model = build(tmp_path, {})
    whole, parts = make(model, compiled=True), make(model, compiled=True)
    parts.state.cache.keys.zero_()
    parts.state.cache.values.zero_()

    for slot in range(3):
        end = len(whole._prompts[slot]) - 1
        parts.prefill([Prefill(slot, start, min(start + 3, end)) for start in range(0, end, 3)])

    assert torch.equal(whole.state.cache.keys, parts.state.cache.keys)
    assert torch.equal(whole.state.cache.values, parts.state.cache.values)


def test_an_utterance_keeps_the_step_that_it_began_with(tmp_path: Path) -> None:
    model = build(tmp_path, {})
    plain, compiled, mixed = make(model, compiled=False), make(model, compiled=True), make(model, compiled=False)
    work = mixed.compilable()
    assert work is not None

    work.use()
    start(mixed, model, 1)
    for stage in (plain, compiled, mixed):
        for _ in range(4):
            codes(stage, [0, 1, 2])

    keys, expected = mixed.state.cache.keys[..., :-1, :], plain.state.cache.keys[..., :-1, :].clone()
    expected[:, 1] = compiled.state.cache.keys[:, 1, :, :-1]
    assert torch.equal(keys, expected)
    assert not torch.equal(keys, plain.state.cache.keys[..., :-1, :]), "both round alike, so this shows nothing"


def test_a_cached_prefix_is_the_same_to_the_bit_as_one_computed_by_the_code_of_its_slot(tmp_path: Path) -> None:
    model, part = build(tmp_path, {}), Prefill(0, 0, 6)
    plain, compiled, mixed = make(model, compiled=False), make(model, compiled=True), make(model, compiled=False)
    for stage in (plain, compiled, mixed):
        stage.prefill([part])
    saved, work = mixed.save(part.slot, part.stop), mixed.compilable()
    assert work is not None
    work.use()
    for slot in (0, 1):
        start(mixed, model, slot)  # slot 2 stays with torch

    for slot, stage in ((0, compiled), (1, compiled), (2, plain)):
        mixed._prompts[slot] = mixed._prompts[part.slot]
        mixed.load(slot, saved)
        mixed._writes.run()

        found, expected = (each.state.cache.keys[:, :, :, : part.stop] for each in (mixed, stage))
        assert torch.equal(found[:, slot], expected[:, part.slot])
    assert not torch.equal(compiled.state.cache.keys[:, 0], plain.state.cache.keys[:, 0]), "both round alike"


def test_a_penalty_that_overflows_is_not_a_model_error(tmp_path: Path) -> None:
    model = build(tmp_path, {})

    for compiled in (False, True):
        stage = make(model, compiled=compiled)
        stage._sampling.repetition_penalty.fill_(1e-42)
        assert all(all(stage.step([0, 1, 2], 1)().valid) for _ in range(4))


def test_a_frame_of_one_other_code_is_found_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from s1_mini.families.codec_lm import compiled as shared
    from s1_mini.families.s1 import compiled

    model = build(tmp_path, {})
    kept = [torch.ones(1)] * 4
    frames = {True: torch.tensor([[151_000.0, 5, 7]]), False: torch.tensor([[151_000.0, 5, 8]])}
    monkeypatch.setattr(shared, "first_frame", lambda _model, _tokens, weights, _step: [frames[weights is None], *kept])

    with pytest.raises(RuntimeError, match="does not match torch's"):
        shared.check(model, compiled.gather(model), compiled.step_of)


def test_damaged_code_is_found_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from s1_mini.families.s1 import compiled

    model = build(tmp_path, {})
    stage = LanguageModel(model, slots=1, positions=SPAN)
    gather = compiled.gather
    monkeypatch.setattr(compiled, "gather", lambda model: gather(model)._replace(code_scale=2.0))
    work = stage.compilable()
    assert work is not None

    with pytest.raises(RuntimeError, match="does not match torch's"):
        work.use()
