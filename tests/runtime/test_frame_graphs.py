"""Captured frames and prompts of fixed sizes match plain calls; on a CPU the graphs run eagerly."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leaks import leaks
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.codec_lm.stage import LanguageModel, prefill_sizes
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.runtime.engine_core import EngineCore
from s1_mini.runtime.graphs import StepGraphs
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import SamplingParams
from tests.runtime.conftest import ask, random_voice, sound
from waiting import wait_until

SLOTS, POSITIONS = 6, 704


SETTINGS = {"max_batch_size": SLOTS, "max_columns": POSITIONS, "max_queue_size": 100}


def equip(core: EngineCore) -> None:
    stage = core.runners[0].stage
    assert isinstance(stage, LanguageModel)
    stage.make_graphs()
    stage.is_overlapped = True


def test_an_engine_with_graphs_generates_the_same_as_one_without(both: tuple[Synthesizer, Synthesizer]) -> None:
    heard = []
    for synthesizer in both:
        queues = [
            ask(
                synthesizer,
                *("One sentence.", "And another."),
                voices=[random_voice(300)] if number % 2 else [],
                seed=number,
                frames=5 + 3 * number,
                temperature=0.0,
            )
            for number in range(6)
        ]
        heard.append([sound(queue) for queue in queues])

    for ours, theirs in zip(*heard, strict=True):
        assert_alike(ours, theirs)
    assert leaks(both[0].core.scheduler) == []


def assert_alike(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-4


def test_a_slot_may_be_filled_to_its_last_position(both: tuple[Synthesizer, Synthesizer]) -> None:
    ours, theirs = (list(ask(each, "A text.", voices=[random_voice(640, seed=3)], frames=1000)) for each in both)

    frames = sum(chunk.frames for chunk in ours)
    assert frames == sum(chunk.frames for chunk in theirs)
    assert 0 < frames < 64
    assert leaks(both[0].core.scheduler) == []


def test_a_cancelled_request_does_not_affect_the_others(both: tuple[Synthesizer, Synthesizer]) -> None:
    options: dict[str, Any] = {"seed": 4, "frames": 30, "temperature": 0.0}
    alone = sound(ask(both[1], "Stay.", **options))

    queues = [ask(both[0], "Stay.", **options) for _ in range(12)]
    for queue in queues[::2]:
        next(iter(queue))
        queue.close()

    for queue in queues[1::2]:
        assert_alike(sound(queue), alone)
    wait_until(lambda: not both[0].core.ledger)
    assert leaks(both[0].core.scheduler) == []


def test_a_frame_that_could_not_be_launched_ahead_is_launched_again(
    both: tuple[Synthesizer, Synthesizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, calls = StepGraphs.launch, itertools.count()

    def fail_once(self: StepGraphs, *given: object) -> object:
        if next(calls) == 6:
            raise RuntimeError("once")
        return launch(self, *given)

    monkeypatch.setattr(StepGraphs, "launch", fail_once)

    assert_alike(*(sound(ask(each, "Again.", seed=5, frames=20, temperature=0.0)) for each in both))


def begin(slot: int, prompt: torch.Tensor, text_start: int | None = None) -> Begin:
    conditions = Conditions(SamplingParams(), 0, 0, 8, {}, text_start)
    return Begin(slot, 0, prompt.T.contiguous().numpy(), None, 0, 8, 1, 0, prompt.shape[1], conditions)


def test_prompts_are_prefilled_together_and_each_into_its_slot(speaker: LoadedCheckpoint) -> None:
    model = speaker.loaded.model
    texts = "Short.", "A somewhat longer sentence, read in two goes.", "Third."
    prompts = {
        slot: torch.from_numpy(model.prompt(text, ()).items).T for slot, text in zip((4, 0, 2), texts, strict=True)
    }
    with torch.inference_mode():
        stage, theirs = LanguageModel(model, slots=SLOTS, positions=POSITIONS), model.allocate(SLOTS, POSITIONS)
        stage.make_graphs()
        stage.begin([begin(*pair) for pair in prompts.items()])
        halves = {slot: tokens.shape[1] // 2 for slot, tokens in prompts.items()}
        first = [Prefill(slot, 0, half) for slot, half in halves.items()]
        second = [Prefill(slot, half, prompts[slot].shape[1]) for slot, half in halves.items()]
        stage.prefill([*first, *second])

        for slot, tokens in prompts.items():
            model.prefill(theirs, slot, tokens, 0)
            pairs = zip(
                stage.state.cache.save(slot, tokens.shape[1]), theirs.cache.save(slot, tokens.shape[1]), strict=True
            )
            assert all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)
        assert not stage.state.cache.keys[:, (1, 3, 5), :, :POSITIONS].any()


def test_a_prompt_longer_than_the_largest_graph_is_prefilled_in_parts(speaker: LoadedCheckpoint) -> None:
    model = speaker.loaded.model
    tokens = torch.from_numpy(model.prompt("And a text.", [random_voice(2 * prefill_sizes(model)[-1], seed=2)]).items).T
    length = tokens.shape[1]
    assert length > 2 * prefill_sizes(model)[-1]
    with torch.inference_mode():
        stage, theirs = LanguageModel(model, slots=1, positions=POSITIONS), model.allocate(1, POSITIONS)
        stage.make_graphs()
        stage.begin([begin(0, tokens)])

        stage.prefill([Prefill(0, 0, length)])
        model.prefill(theirs, 0, tokens, 0)

        for one, other in zip(stage.state.cache.save(0, length), theirs.cache.save(0, length), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


def test_scores_that_are_read_after_the_next_launch_are_those_of_their_step(tmp_path: Path) -> None:
    recipe = RECIPES["tiny"]
    aligned = replace(recipe, model=recipe.model | {"alignment": {"layer": 1, "head": 2, "shift_ms": 20}})
    write_random_checkpoint(tmp_path / "aligned", aligned)
    speaker = load(EngineConfig(checkpoint_path=tmp_path / "aligned", device="cpu", compile="false"))
    model = speaker.loaded.model
    prompts = [torch.from_numpy(model.prompt(text, ()).items).T for text in ("One text.", "Another.")]
    found = []
    with torch.inference_mode():
        for has_graphs in (True, False):
            stage = LanguageModel(model, slots=2, positions=POSITIONS)
            if has_graphs:
                stage.make_graphs()
            stage.begin([begin(slot, tokens, text_start=1) for slot, tokens in enumerate(prompts)])
            stage.prefill([Prefill(slot, 0, tokens.shape[1]) for slot, tokens in enumerate(prompts)])
            launched = [stage.step([0, 1], 2), stage.step([0, 1], 2)]
            results = [launched[0](), (third := stage.step([0, 1], 2)) and launched[1](), third()]
            found.append([result.scores[slot] for result in results for slot in (0, 1)])

    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert not np.allclose(found[0][0], found[0][2])
