"""Stage plans: busy seconds are counted once, however prefills and steps overlap; failures hold no memory."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch

from s1_mini.core.messages import Begin, Conditions, Plan, Prefill, StepResult
from s1_mini.runtime import runner as module
from s1_mini.runtime.runner import StageRunner
from s1_mini.runtime.stage import Pending, Stage
from s1_mini.types import SamplingParams


class Clock(SimpleNamespace):
    """A clock that advances only on request."""

    now = 100.0

    def perf_counter(self) -> float:
        """Return the second."""
        return self.now


class Slow(Stage):
    """Takes a second of host time to begin a unit, and a second of device time per step."""

    device = torch.device("cpu")
    is_overlapped = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def begin(self, begins: Sequence[Begin]) -> None:  # noqa: ARG002 - any
        """Take a second."""
        self.clock.now += 1.0

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - any size
        """Launch work that takes a second."""
        over, count = self.clock.now + 1.0, len(slots)

        def look() -> StepResult:
            self.clock.now = max(self.clock.now, over)
            return StepResult([[]] * count, [0] * count, [False] * count, [True] * count)

        return look


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def beginning(slot: int, *, steps: Sequence[int] = ()) -> Plan:
    conditions = Conditions(SamplingParams(), 0, 0, 1, {})
    return Plan(0, slot, begins=[Begin(slot, 0, [], [], 0, 1, 1, 0, 0, conditions)], steps=list(steps))


def test_prefill_that_overlaps_steps_is_not_counted_twice(clock: Clock) -> None:
    runner = StageRunner(Slow(clock), lambda: None)
    plans = [beginning(0, steps=[0]), beginning(1), beginning(2, steps=[0])]

    looks = [runner.step(plan, runner.prepare(plan)) for plan in plans]
    clock.now += 0.5

    assert [look().seconds for look in looks] == [3.5, 0.0, 0.5]


def test_prefill_without_steps_is_counted_to_its_end(clock: Clock) -> None:
    runner = StageRunner(Slow(clock), lambda: None)
    plan = beginning(0)

    look = runner.step(plan, runner.prepare(plan))
    clock.now += 4.0

    assert look().seconds == 1.0


class Scratch:
    """Stands for the tensors of a call."""


class OutOfMemoryTogether(Slow):
    """Works on one slot at a time; counts what failed calls still hold when the next one begins."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.made: list[weakref.ref[Scratch]] = []
        self.num_held = 0

    def work(self, count: int) -> None:
        """Fail for several slots, while tensors are alive."""
        self.num_held += sum(each() is not None for each in self.made)
        scratch = Scratch()
        self.made.append(weakref.ref(scratch))
        if count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")

    def prefill(self, parts: Sequence[Prefill]) -> None:
        """Fail for several slots."""
        self.work(len(parts))

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Fail for several slots."""
        self.work(len(slots))
        return super().step(slots, size)


def test_a_call_that_failed_holds_no_memory_while_its_slots_are_tried_alone(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger=module.__name__)  # a record that pytest keeps would hold it, too
    stage = OutOfMemoryTogether(clock)
    runner = StageRunner(stage, lambda: None)
    plan = Plan(0, 0, is_autoregressive=False, prefills=[Prefill(0, 0, 4), Prefill(1, 0, 4)], steps=[0, 1])

    gc.disable()  # the collector would free it later
    try:
        report = runner.run(plan)
    finally:
        gc.enable()

    assert (report.errors, len(stage.made), stage.num_held) == ({}, 8, 0)
