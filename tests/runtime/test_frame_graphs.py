"""Frames and prompts by graphs of fixed sizes are those of plain calls; on a CPU the graphs run step by step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from leaks import leaks
from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.s1.language_model import READS, LanguageModel
from s1_mini.runtime.engine_core import EngineCore
from s1_mini.runtime.graphs import StepGraphs
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import SamplingParams, Voice
from voice_formats import BOOKS
from waiting import wait_until

SLOTS, POSITIONS = 6, 704


SETTINGS = {"max_batch_size": SLOTS, "max_columns": POSITIONS, "max_queue_size": 100}


def equip(core: EngineCore) -> None:
    stage = core.runners[0].stage
    assert isinstance(stage, LanguageModel)
    stage.make_graphs()
    stage.is_overlapped = True


def random_voice(frames: int, *, seed: int) -> Voice:
    codes = torch.randint(0, 32, (BOOKS, frames), generator=torch.Generator().manual_seed(seed))
    return Voice({"codes": codes}, "A voice.")


def test_an_engine_with_graphs_says_what_one_without_says(both: tuple[Synthesizer, Synthesizer]) -> None:
    voices = [
        (),
        [random_voice(300, seed=1)],
    ]
    heard = []
    for synthesizer in both:
        queues = [
            synthesizer.speak(
                ["One sentence.", "And another."],
                voices[number % 2],
                SamplingParams(seed=number, max_new_tokens=5 + 3 * number, temperature=0.0),
                deadline=float("inf"),
            )
            for number in range(10)
        ]
        heard.append([np.concatenate([chunk.audio for chunk in queue]) for queue in queues])

    for ours, theirs in zip(*heard, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-4
    assert leaks(both[0].core.scheduler) == []


def test_a_slot_may_be_filled_to_its_last_column(both: tuple[Synthesizer, Synthesizer]) -> None:
    voice = random_voice(640, seed=3)
    asked = SamplingParams(seed=1, max_new_tokens=1000)

    ours, theirs = (list(each.speak(["A text."], [voice], asked, deadline=float("inf"))) for each in both)

    frames = sum(chunk.frames for chunk in ours)
    assert frames == sum(chunk.frames for chunk in theirs)
    assert 0 < frames < 64
    assert leaks(both[0].core.scheduler) == []


def test_who_breaks_off_takes_nothing_from_the_others(both: tuple[Synthesizer, Synthesizer]) -> None:
    asked = SamplingParams(seed=4, max_new_tokens=30, temperature=0.0)
    alone = np.concatenate([chunk.audio for chunk in both[1].speak(["Stay."], (), asked, deadline=float("inf"))])

    queues = [both[0].speak(["Stay."], (), asked, deadline=float("inf")) for _ in range(12)]
    for queue in queues[::2]:
        next(iter(queue))
        queue.close()

    for queue in queues[1::2]:
        heard = np.concatenate([chunk.audio for chunk in queue])
        assert heard.shape == alone.shape
        assert np.abs(heard - alone).max() < 1e-4
    wait_until(lambda: not both[0].core.num_requests)
    assert leaks(both[0].core.scheduler) == []


def test_a_frame_that_could_not_be_launched_ahead_is_launched_again(
    both: tuple[Synthesizer, Synthesizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = SamplingParams(seed=5, max_new_tokens=20, temperature=0.0)
    ours, theirs = both
    launch, calls = StepGraphs.launch, itertools.count()

    def fail_once(self: StepGraphs, *given: object) -> object:
        if next(calls) == 6:
            raise RuntimeError("once")
        return launch(self, *given)

    monkeypatch.setattr(StepGraphs, "launch", fail_once)
    heard, expected = (
        np.concatenate([chunk.audio for chunk in each.speak(["Again."], (), asked, deadline=float("inf"))])
        for each in (ours, theirs)
    )

    assert heard.shape == expected.shape
    assert np.abs(heard - expected).max() < 1e-4


def begin(slot: int, prompt: torch.Tensor) -> Begin:
    conditions = Conditions(SamplingParams(), 0, 0, 8, {})
    return Begin(slot, 0, prompt.T.contiguous().numpy(), None, 0, 8, 1, 0, prompt.shape[1], conditions)


def test_prompts_are_read_together_and_each_into_its_slot(speaker: LoadedCheckpoint) -> None:
    model = speaker.loaded.model
    texts = "Short.", "A somewhat longer sentence, read in two goes.", "Third."
    prompts = {
        slot: torch.from_numpy(model.prompt(text, ()).items).T for slot, text in zip((4, 0, 2), texts, strict=True)
    }
    with torch.inference_mode():
        stage, theirs = LanguageModel(model, slots=SLOTS, positions=POSITIONS), model.allocate(SLOTS, POSITIONS)
        stage.make_graphs()
        stage.begin([begin(*pair) for pair in prompts.items()])
        halves = {slot: columns.shape[1] // 2 for slot, columns in prompts.items()}
        first = [Prefill(slot, 0, half) for slot, half in halves.items()]
        second = [Prefill(slot, half, prompts[slot].shape[1]) for slot, half in halves.items()]
        stage.prefill([*first, *second])

        for slot, columns in prompts.items():
            model.prefill(theirs, slot, columns, 0)
            pairs = zip(
                stage.state.cache.save(slot, columns.shape[1]), theirs.cache.save(slot, columns.shape[1]), strict=True
            )
            assert all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)
        assert not stage.state.cache.keys[:, (1, 3, 5), :, :POSITIONS].any()


def test_a_prompt_longer_than_the_largest_graph_is_read_in_several_goes(speaker: LoadedCheckpoint) -> None:
    model = speaker.loaded.model
    columns = torch.from_numpy(model.prompt("And a text.", [random_voice(2 * READS[-1], seed=2)]).items).T
    length = columns.shape[1]
    assert length > 2 * READS[-1]
    with torch.inference_mode():
        stage, theirs = LanguageModel(model, slots=1, positions=POSITIONS), model.allocate(1, POSITIONS)
        stage.make_graphs()
        stage.begin([begin(0, columns)])

        stage.prefill([Prefill(0, 0, length)])
        model.prefill(theirs, 0, columns, 0)

        for one, other in zip(stage.state.cache.save(0, length), theirs.cache.save(0, length), strict=True):
            assert torch.allclose(one, other, atol=1e-5)
