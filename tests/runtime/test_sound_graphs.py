"""Audio of many rows in batches of fixed sizes matches each row alone; on a CPU the graphs run eagerly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from leaks import leaks
from s1_mini.codecs.causal.stage import MAX_FRAMES, CausalDecoder
from s1_mini.codecs.stage import ROWS
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks
from s1_mini.exceptions import GenerationError
from s1_mini.families.codec_lm.loaded import CHUNK_FRAMES
from s1_mini.runtime.engine_core import EngineCore
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import SamplingParams
from tests.runtime.conftest import ask, sound, start_equipped
from voice_formats import BOOKS

RATE = 2048
SETTINGS = {"max_batch_size": 6, "max_columns": 512, "max_queue_size": 1000}


def equip(core: EngineCore) -> None:
    stage = core.runners[1].stage
    assert isinstance(stage, CausalDecoder)
    policy = core.scheduler.stages[1].policy
    assert isinstance(policy, Chunks)
    core.scheduler.stages[1].policy = stage._policy = batched(policy)
    stage.make_graphs()
    stage.is_overlapped = True
    core.workers[0]._helps = None  # a stage with graphs has its own thread


def batched(policy: Chunks) -> Chunks:
    return replace(policy, rows=tuple(sorted({min(rows, policy.slots) for rows in ROWS})))


@pytest.mark.parametrize("profile", sorted(CHUNK_FRAMES))
def test_requests_of_any_length_sound_as_they_do_one_by_one(
    both: tuple[Synthesizer, Synthesizer], profile: str
) -> None:
    together, alone = (
        [ask(each, "One.", "Two.", seed=seed, frames=9 + 8 * seed, profile=profile) for seed in range(4)]
        for each in both
    )

    for ours, theirs in zip(map(sound, together), map(sound, alone), strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-5
    assert leaks(both[0].core.scheduler) == []


def test_a_call_decodes_no_more_frames_than_it_may(speaker: LoadedCheckpoint) -> None:
    policy = speaker.loaded.chain(32, 64).policies[1]
    assert isinstance(policy, Chunks)
    most = {size: batched(policy).most_together(size) for size in policy.classes}

    assert most == {1: 64, 2: 64, 4: 64, 8: 32, 12: 32, 16: 16, 25: 16}
    assert all(size * rows <= MAX_FRAMES for size, rows in most.items())


def test_audio_that_is_not_finite_is_an_error_of_its_slot(speaker: LoadedCheckpoint) -> None:
    """The slots next to it are reported as finite."""
    codes = np.zeros((2, BOOKS), np.int64)
    conditions = Conditions(SamplingParams(), 0, 0, 8, {})
    with torch.inference_mode():
        policy = batched(speaker.loaded.chain(2, 64).policies[1])
        stage = CausalDecoder(speaker.loaded.codec, policy, number=1)
        stage.make_graphs()
        for number in range(2):
            stage.begin(
                [Begin(slot, number, codes, None, number * 2 * RATE, 1, 2, 0, 2, conditions) for slot in (0, 1)]
            )
            result = stage.step([0, 1], 2)()
            stage._decoder._decoder._last.past[1] = torch.nan

    assert result.valid == [True, False]
    assert np.isfinite(result.values[0]).all()


def test_a_request_with_non_finite_audio_fails_alone(speaker: LoadedCheckpoint) -> None:
    synthesizer = start_equipped(speaker, SETTINGS, equip)
    expected = sound(ask(synthesizer, frames=16, profile="ttfa"))
    stage = synthesizer.core.runners[1].stage
    assert isinstance(stage, CausalDecoder)
    plain = stage.step

    def spoil(slots: Any, size: int) -> Any:
        result = plain(slots, size)()
        result.valid = [len(stage._begun[slot].inputs) != 16 for slot in slots]
        return lambda: result

    stage.step = spoil  # type: ignore[method-assign]
    bad, good = ask(synthesizer, frames=16, profile="throughput"), ask(synthesizer, frames=16, profile="ttfa")

    assert len(expected) == 16 * RATE
    assert np.abs(sound(good) - expected).max() < 1e-5
    with pytest.raises(GenerationError, match="not finite"):
        sound(bad)
    synthesizer.close()
    assert leaks(synthesizer.core.scheduler) == []
