"""Carries out the plans of one stage. If a slot causes an error, only that slot's request ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from s1_mini.core.messages import Begin, Feed, Load, Plan, Prefill, Report, StepResult
from s1_mini.exceptions import CapacityError, GenerationError, S1MiniError
from s1_mini.runtime.stage import Pending, Stage

logger = logging.getLogger(__name__)


Row = TypeVar("Row", Begin, Load, Prefill, Feed)
Result = TypeVar("Result")
Part = tuple[list[int], Pending]  # rows of a plan's steps, and their pending results


class StageRunner:
    """Runs one stage. When memory has run out, it calls `free_memory` and tries again."""

    def __init__(self, stage: Stage, free_memory: Callable[[], None]) -> None:
        self.stage, self._free_memory = stage, free_memory
        self._counted_until = 0.0  # work before this time is included in the `seconds` of earlier reports

    def run(self, plan: Plan) -> Report:
        """Carry out a plan. Like all methods, this raises `torch.AcceleratorError` if the device is lost."""
        return self.step(plan, self.prepare(plan))()

    @torch.inference_mode()
    def prepare(self, plan: Plan) -> Report:
        """Carry out a plan except for its steps. The device may still run the steps of the previous plan."""
        report = Report(began=time.perf_counter())
        if plan.drops:
            self.stage.drop(plan.drops)
        self._each(plan.begins, self.stage.begin, report)
        self._each(plan.loads, self._load, report)
        self._prefill(plan, report)
        self._each(plan.feeds, self.stage.feed, report)
        report.seconds = time.perf_counter() - report.began
        return report

    @torch.inference_mode()
    def step(self, plan: Plan, report: Report) -> Callable[[], Report]:
        """Launch the steps of a prepared plan; return a function that waits for them and returns the report."""
        return partial(self._look, plan, self._step(plan, report), report)

    def _load(self, loads: Sequence[Load]) -> None:
        for load in loads:
            self.stage.load(load.slot, load.saved)

    def _prefill(self, plan: Plan, report: Report) -> None:
        """Prefill in as few calls as possible; a call ends after each prefix that must be saved."""
        parts: list[Prefill] = []
        for part in plan.prefills:
            parts.append(part)
            if not part.key:
                continue
            self._each(parts, self.stage.prefill, report)
            parts = []
            if part.slot not in report.errors:
                with suppress(torch.OutOfMemoryError):  # the prefix is not cached; the next request computes it again
                    report.saved[part.key] = self.stage.save(part.slot, part.stop)
        self._each(parts, self.stage.prefill, report)

    def _look(self, plan: Plan, parts: list[Part], report: Report) -> Report:
        """Wait for the steps of a plan, and complete its report. Time that overlaps the previous plan counts once."""
        ended = report.began + report.seconds
        if plan.steps:
            self._wait_all(plan, parts, report)
            ended = time.perf_counter()
        report.seconds = max(0.0, ended - max(report.began, self._counted_until))
        self._counted_until = max(self._counted_until, ended)
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
            joined.scores = {**joined.scores, **result.scores}
        report.result = joined

    @staticmethod
    def _wait(plan: Plan, part: Part, report: Report) -> StepResult | None:
        """Wait for the steps of one call. If it fails, the report gets an error for each of its slots."""
        rows, pending = part

        def fail(error: Exception) -> None:
            report.errors |= {plan.steps[row]: as_error(error) for row in rows}

        result = attempt(pending, fail)
        if result is not None:
            report.skipped |= set(result.late)
        return result

    def _each(self, rows: Sequence[Row], work: Callable[[Sequence[Row]], object], report: Report) -> None:
        """Call `work` for all rows together; if it fails, for each row alone."""
        rows = [row for row in rows if row.slot not in report.errors]
        if not rows:
            return
        _, error = self._try(lambda: work(rows))
        if error is not None and len(rows) == 1:
            report.errors[rows[0].slot] = as_error(error)
        elif error is not None:
            del error  # because its traceback keeps device memory of the failed call alive
            for row in rows:
                self._each([row], work, report)

    def _try(self, work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
        failures: list[Exception] = []
        result = attempt(lambda: with_memory(work, self._free_memory), failures.append)
        # `pop`, because the error's traceback refers to the list: the cycle would hold device memory.
        return result, failures.pop() if failures else None

    def _step(self, plan: Plan, report: Report) -> list[Part]:
        rows = [row for row, slot in enumerate(plan.steps) if slot not in report.errors]
        slots = [plan.steps[row] for row in rows]
        if not rows:
            return []
        pending, error = self._try(lambda: self.stage.step(slots, plan.size))
        if pending is not None:
            return [(rows, pending)]
        assert error is not None
        if isinstance(error, torch.OutOfMemoryError) and plan.is_autoregressive:
            report.errors[slots[-1]] = as_error(error)  # end the newest request, to free memory for the other requests
            report.skipped |= set(slots[:-1])
            return []
        logger.warning("a step failed; retrying each slot alone", exc_info=error)
        del error
        return self._step_alone(plan, rows, report)

    def _step_alone(self, plan: Plan, rows: Sequence[int], report: Report) -> list[Part]:
        parts: list[Part] = []
        for row in rows:
            slot = plan.steps[row]
            result, error = self._try(partial(self._step_one, slot, plan.size))
            if result is not None:
                parts.append(([row], partial(_same, result)))
            elif error is not None:
                report.errors[slot] = as_error(error)
        return parts

    def _step_one(self, slot: int, size: int) -> StepResult:
        return self.stage.step([slot], size)()


def with_memory(work: Callable[[], Result], free: Callable[[], object]) -> Result:
    """Return the result of `work`; if memory runs out, call `free` and try once more."""
    try:
        return work()
    except torch.OutOfMemoryError:
        pass  # leaving the handler drops the exception, which keeps memory of the failed attempt alive
    free()
    return work()


def attempt(work: Callable[[], Result], on_error: Callable[[Exception], object]) -> Result | None:
    """Return the result of `work`, or None after passing its error to `on_error`.

    `torch.AcceleratorError` is raised, because it means that the device is lost and all later calls would fail.
    """
    try:
        return work()
    except torch.AcceleratorError:
        raise
    except Exception as error:  # models, kernels, compilers and drivers raise errors of any class
        on_error(error)
        return None


def as_error(error: Exception) -> S1MiniError:
    if isinstance(error, S1MiniError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        reason = str(error).partition(".")[0]
        return CapacityError(f"out of memory: {reason}. Use a shorter text or reference, or fewer concurrent requests.")
    logger.error("the model failed", exc_info=error)
    return GenerationError(f"the model failed on this request: {type(error).__name__}: {error}")


def _same(result: StepResult) -> StepResult:
    return result
