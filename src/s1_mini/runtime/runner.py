"""Carries out the plans of one stage. What fails is the error of its slot; the others go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from s1_mini.core.messages import Begin, Load, Plan, Prefill, Report, StepResult
from s1_mini.exceptions import CapacityError, GenerationError, S1MiniError
from s1_mini.runtime.stage import Pending, Stage

logger = logging.getLogger(__name__)


Row = TypeVar("Row", Begin, Load, Prefill)
Result = TypeVar("Result")
Part = tuple[list[int], Pending]  # rows of a plan's steps, and what they give


class StageRunner:
    """One stage at work. `let_go` gives memory back when there is none left."""

    def __init__(self, stage: Stage, let_go: Callable[[], None]) -> None:
        self.stage, self._let_go = stage, let_go
        self._worked = 0.0  # until when seconds are counted

    def run(self, plan: Plan) -> Report:
        """Carry out a plan. Raises `torch.AcceleratorError` if the device is lost, as all that follows."""
        return self.step(plan, self.prepare(plan))()

    @torch.inference_mode()
    def prepare(self, plan: Plan) -> Report:
        """Do all of a plan but its steps; the device may still be at those of the last."""
        report = Report(began=time.perf_counter())
        if plan.drops:
            self.stage.drop(plan.drops)
        self._each(plan.begins, self.stage.begin, report)
        self._each(plan.loads, self._load, report)
        self._prefill(plan, report)
        report.seconds = time.perf_counter() - report.began
        return report

    @torch.inference_mode()
    def step(self, plan: Plan, report: Report) -> Callable[[], Report]:
        """Launch the steps of a plan that is prepared; give what waits for them."""
        return partial(self._look, plan, self._step(plan, report), report)

    def _load(self, loads: Sequence[Load]) -> None:
        for load in loads:
            self.stage.load(load.slot, load.saved)

    def _prefill(self, plan: Plan, report: Report) -> None:
        """Read what is to be read together; what is to be saved, up to there and then on."""
        parts: list[Prefill] = []
        for part in plan.prefills:
            parts.append(part)
            if not part.key:
                continue
            self._each(parts, self.stage.prefill, report)
            parts = []
            if part.slot not in report.errors:
                with suppress(torch.OutOfMemoryError):  # it is read again another time
                    report.saved[part.key] = self.stage.save(part.slot, part.stop)
        self._each(parts, self.stage.prefill, report)

    def _look(self, plan: Plan, parts: list[Part], report: Report) -> Report:
        """Wait for the steps of a plan; count seconds that it shares with the last once."""
        over = report.began + report.seconds
        if plan.steps:
            self._wait_all(plan, parts, report)
            over = time.perf_counter()
        report.seconds = max(0.0, over - max(report.began, self._worked))
        self._worked = max(self._worked, over)
        return report

    def _wait_all(self, plan: Plan, parts: list[Part], report: Report) -> None:
        if len(parts) == 1 and len(parts[0][0]) == len(plan.steps):
            report.result = self._wait(plan, parts[0], report)
            return
        count = len(plan.steps)
        values: list[Any] = [np.zeros(0)] * count
        joined = StepResult(values, [0] * count, [False] * count, [True] * count)
        for rows, pending in parts:
            result = self._wait(plan, (rows, pending), report)
            if result is None:
                continue
            for at, row in enumerate(rows):
                values[row] = result.values[at]
                joined.counts[row], joined.stops[row] = result.counts[at], result.stops[at]
                joined.valid[row] = result.valid[at]
        report.result = joined

    @staticmethod
    def _wait(plan: Plan, part: Part, report: Report) -> StepResult | None:
        """Wait for some steps; what fails only now is the error of all of them."""
        rows, pending = part

        def fail(error: Exception) -> None:
            report.errors |= {plan.steps[row]: as_error(error) for row in rows}

        result = attempt(pending, fail)
        if result is not None:
            report.skipped |= set(result.late)
        return result

    def _each(self, rows: Sequence[Row], work: Callable[[Sequence[Row]], object], report: Report) -> None:
        """Do some work for all rows together; if that fails, for each alone, so that it fails for those alone."""
        rows = [row for row in rows if row.slot not in report.errors]
        if not rows:
            return
        failures: list[Exception] = []
        attempt(lambda: with_memory(lambda: work(rows), self._let_go), failures.append)
        if failures and len(rows) == 1:
            report.errors[rows[0].slot] = as_error(failures[0])
        elif failures:
            failures.clear()  # with what the failed attempt still holds of the device's memory
            for row in rows:
                self._each([row], work, report)

    def _step(self, plan: Plan, report: Report) -> list[Part]:
        rows = [row for row, slot in enumerate(plan.steps) if slot not in report.errors]
        slots = [plan.steps[row] for row in rows]
        if not rows:
            return []
        failures: list[Exception] = []
        pending = attempt(lambda: with_memory(lambda: self.stage.step(slots, plan.size), self._let_go), failures.append)
        if pending is not None:
            return [(rows, pending)]
        error = failures.pop()
        if isinstance(error, torch.OutOfMemoryError) and plan.is_autoregressive:
            report.errors[slots[-1]] = as_error(error)  # the newest makes room for the others
            report.skipped |= set(slots[:-1])
            return []
        logger.warning("a step failed; each slot is tried alone", exc_info=error)
        del error
        return self._step_alone(plan, rows, report)

    def _step_alone(self, plan: Plan, rows: Sequence[int], report: Report) -> list[Part]:
        parts: list[Part] = []
        for row in rows:
            slot, failures = plan.steps[row], list[Exception]()
            step = partial(self._step_one, slot, plan.size)
            result = attempt(partial(with_memory, step, self._let_go), failures.append)
            if result is None:
                report.errors[slot] = as_error(failures[0])
            else:
                parts.append(([row], partial(_same, result)))
        return parts

    def _step_one(self, slot: int, size: int) -> StepResult:
        return self.stage.step([slot], size)()


def with_memory(work: Callable[[], Result], free: Callable[[], object]) -> Result:
    """Return the result of `work`; if memory runs out, call `free` and try once more."""
    try:
        return work()
    except torch.OutOfMemoryError:
        pass  # the exception holds memory of the failed attempt: it is dropped before the next
    free()
    return work()


def attempt(work: Callable[[], Result], on_error: Callable[[Exception], object]) -> Result | None:
    """Return the result of `work`, or None after passing its error to `on_error`.

    Raises `torch.AcceleratorError`: the device is lost, and everything that follows would fail.
    """
    try:
        return work()
    except torch.AcceleratorError:
        raise
    except Exception as error:  # models, kernels, compilers and drivers raise errors of any class
        on_error(error)
        return None


def as_error(error: Exception) -> S1MiniError:
    """Give what is told to the owner of a slot."""
    if isinstance(error, S1MiniError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        reason = str(error).partition(".")[0]
        return CapacityError(f"out of memory: {reason}. Use a shorter text or reference, or fewer requests at once.")
    logger.error("the model failed", exc_info=error)
    return GenerationError(f"the model failed on this request: {type(error).__name__}: {error}")


def _same(result: StepResult) -> StepResult:
    return result
