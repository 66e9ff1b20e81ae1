"""Frames and prompts by graphs of fixed sizes are those of plain calls; on a CPU the graphs run step by step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from s1_mini.families.base import SamplingTensors
from s1_mini.runtime.frame_graphs import READS, FrameGraphs
from s1_mini.runtime.generator import Generator
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.model_runner import ModelRunner
from s1_mini.types import SamplingParams, Voice

SLOTS, COLUMNS = 6, 704


SETTINGS = {"max_batch_size": SLOTS, "max_columns": COLUMNS, "max_queue_size": 100}


def equip(runner: ModelRunner, _: Speaker) -> None:
    runner._graphs = FrameGraphs(runner.model, runner._state, runner._sampling, slots=runner.slots, span=runner.columns)


def random_voice(frames: int, *, seed: int) -> Voice:
    codes = torch.randint(0, 32, (10, frames), generator=torch.Generator().manual_seed(seed))
    return Voice({"codes": codes}, "A voice.")


def test_an_engine_with_graphs_says_what_one_without_says(both: tuple[Generator, Generator]) -> None:
    voices = [
        (),
        [random_voice(300, seed=1)],
    ]
    heard = []
    for generator in both:
        outboxes = [
            generator.speak(
                ["One sentence.", "And another."],
                voices[number % 2],
                SamplingParams(seed=number, max_new_tokens=5 + 3 * number, temperature=0.0),
                deadline=float("inf"),
            )
            for number in range(10)
        ]
        heard.append([np.concatenate([chunk.audio for chunk in outbox]) for outbox in outboxes])

    for ours, theirs in zip(*heard, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-4
    assert list(both[0].worker.audit()) == []


def test_a_slot_may_be_filled_to_its_last_column(both: tuple[Generator, Generator]) -> None:
    voice = random_voice(640, seed=3)
    asked = SamplingParams(seed=1, max_new_tokens=1000)

    ours, theirs = (list(each.speak(["A text."], [voice], asked, deadline=float("inf"))) for each in both)

    frames = sum(chunk.frames for chunk in ours)
    assert frames == sum(chunk.frames for chunk in theirs)
    assert 0 < frames < 64
    assert list(both[0].worker.audit()) == []


def test_who_breaks_off_takes_nothing_from_the_others(both: tuple[Generator, Generator]) -> None:
    asked = SamplingParams(seed=4, max_new_tokens=30, temperature=0.0)
    alone = np.concatenate([chunk.audio for chunk in both[1].speak(["Stay."], (), asked, deadline=float("inf"))])

    outboxes = [both[0].speak(["Stay."], (), asked, deadline=float("inf")) for _ in range(12)]
    for outbox in outboxes[::2]:
        next(iter(outbox))
        outbox.close()

    for outbox in outboxes[1::2]:
        heard = np.concatenate([chunk.audio for chunk in outbox])
        assert heard.shape == alone.shape
        assert np.abs(heard - alone).max() < 1e-4
    wait_for(lambda: not both[0].worker.num_jobs)
    assert list(both[0].worker.audit()) == []


def test_a_frame_that_could_not_be_launched_ahead_is_launched_again(
    both: tuple[Generator, Generator], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = SamplingParams(seed=5, max_new_tokens=20, temperature=0.0)
    ours, theirs = both
    launch, calls = FrameGraphs.launch, itertools.count()

    def fail_once(self: FrameGraphs, rows: int) -> None:
        if next(calls) == 6:
            raise RuntimeError("once")
        launch(self, rows)

    monkeypatch.setattr(FrameGraphs, "launch", fail_once)
    heard, expected = (
        np.concatenate([chunk.audio for chunk in each.speak(["Again."], (), asked, deadline=float("inf"))])
        for each in (ours, theirs)
    )

    assert heard.shape == expected.shape
    assert np.abs(heard - expected).max() < 1e-4
    assert "launched ahead" in caplog.text


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_prompts_are_read_together_and_each_into_its_slot(speaker: Speaker) -> None:
    model = speaker.model
    prompts = [
        model.prompt(text, ()).columns for text in ("Short.", "A somewhat longer sentence, read in two goes.", "Third.")
    ]
    with torch.inference_mode():
        ours, theirs = (model.allocate(SLOTS, COLUMNS) for _ in range(2))
        sampling = SamplingTensors(*torch.ones(3, SLOTS), torch.zeros(SLOTS, COLUMNS + 1, model.num_codebooks))
        graphs = FrameGraphs(model, ours, sampling, slots=SLOTS, span=COLUMNS)
        for slot, columns in zip((4, 0, 2), prompts, strict=True):
            half = columns.shape[1] // 2
            graphs.read(slot, columns[:, :half], 0)
            graphs.read(slot, columns[:, half:], half)
            model.prefill(theirs, slot, columns, 0)
        graphs.flush()

        for slot, columns in zip((4, 0, 2), prompts, strict=True):
            pairs = zip(ours.cache.save(slot, columns.shape[1]), theirs.cache.save(slot, columns.shape[1]), strict=True)
            assert all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)
        untouched = (1, 3, 5)
        assert not ours.cache.keys[:, untouched, :, :COLUMNS].any()


def test_a_prompt_longer_than_the_largest_graph_is_read_in_several_goes(speaker: Speaker) -> None:
    model = speaker.model
    voice = random_voice(2 * READS[-1], seed=2)
    columns = model.prompt("And a text.", [voice]).columns
    assert columns.shape[1] > 2 * READS[-1]
    with torch.inference_mode():
        ours, theirs = (model.allocate(1, COLUMNS) for _ in range(2))
        sampling = SamplingTensors(*torch.ones(3, 1), torch.zeros(1, COLUMNS + 1, model.num_codebooks))
        graphs = FrameGraphs(model, ours, sampling, slots=1, span=COLUMNS)

        graphs.read(0, columns, 0)
        graphs.flush()
        model.prefill(theirs, 0, columns, 0)

        for one, other in zip(
            ours.cache.save(0, columns.shape[1]), theirs.cache.save(0, columns.shape[1]), strict=True
        ):
            assert torch.allclose(one, other, atol=1e-5)
