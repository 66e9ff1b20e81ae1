"""Plans of a stage: seconds of work are counted once, however reads and steps overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch

from s1_mini.core.messages import Begin, Conditions, Plan, StepResult
from s1_mini.runtime import runner as module
from s1_mini.runtime.runner import StageRunner
from s1_mini.runtime.stage import Pending, Stage
from s1_mini.types import SamplingParams


class Clock(SimpleNamespace):
    """Goes on when it is told to."""

    now = 100.0

    def perf_counter(self) -> float:
        """Return the second."""
        return self.now


class Slow(Stage):
    """Takes a second of the host to begin a unit, and one of its device to make a step."""

    device = torch.device("cpu")
    is_overlapped = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def begin(self, begins: Sequence[Begin]) -> None:  # noqa: ARG002 - any
        """Take a second."""
        self.clock.now += 1.0

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - any size
        """Launch what takes a second."""
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


def test_what_is_begun_while_steps_are_under_way_is_no_time_of_its_own(clock: Clock) -> None:
    runner = StageRunner(Slow(clock), lambda: None)
    plans = [beginning(0, steps=[0]), beginning(1), beginning(2, steps=[0])]

    looks = [runner.step(plan, runner.prepare(plan)) for plan in plans]
    clock.now += 0.5

    assert [look().seconds for look in looks] == [3.5, 0.0, 0.5]


def test_what_is_begun_alone_is_counted_to_its_end(clock: Clock) -> None:
    runner = StageRunner(Slow(clock), lambda: None)
    plan = beginning(0)

    look = runner.step(plan, runner.prepare(plan))
    clock.now += 4.0

    assert look().seconds == 1.0
