"""Moves utterances from stage to stage and ends requests.

Pure bookkeeping; the caller holds the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from s1_mini.core.ledger import RequestTracker
from s1_mini.core.messages import Plan, Report, StepResult
from s1_mini.core.request import MAX_QUEUED, Request, StageSequence, Utterance
from s1_mini.core.stage import NEVER
from s1_mini.core.stage_queue import Owners, StageQueue
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import GenerationError, S1MiniError


@dataclass(frozen=True)
class Follow:
    """Work for a request to be done after the lock is released."""

    request: Request
    work: Callable[[], None]


class Pipeline:
    """The chain of stages of a model family."""

    def __init__(
        self,
        stages: list[StageQueue],
        ledger: RequestTracker,
        line: WaitingLine,
        *,
        wake: Callable[[int], None],
        on_end: Callable[[], None],
        extend: Callable[[Request, list[Utterance]], None],
        clock: Callable[[], float],
    ) -> None:
        """`wake` is called with a stage that has work, `extend` with a request's further utterances."""
        self.stages, self.ledger, self._line = stages, ledger, line
        self._wake, self._on_end, self._extend, self._clock = wake, on_end, extend, clock
        self._follows: list[Follow] = []
        # The stage whose items and calls are counted: the last autoregressive one.
        self.counted = max((stage.index for stage in stages if stage.policy.is_autoregressive), default=0)

    def is_behind(self, stage: int) -> bool:
        """Back-pressure: the next stage is full."""
        if stage + 1 == len(self.stages):
            return False
        return self.stages[stage + 1].num_waiting >= self.stages[stage].slots.count

    @property
    def num_free(self) -> int:
        """Slots of the first stage that waiting utterances may take."""
        queue = self.stages[0]
        return 0 if self._line.is_empty or self.is_behind(0) else max(0, queue.slots.num_free - len(queue.ready))

    def has_work(self, stage: int, now: float) -> bool:
        """Whether a plan of a stage would do anything."""
        if self.stages[stage].has_work(holds_back=stage > 0 and self.is_behind(stage)):
            return True
        held_back = self._line.wakes(now, self.num_free) if stage == 0 else None
        return held_back is not None and held_back <= 0

    def admit(self, now: float) -> None:
        """Admit waiting utterances to the first stage, up to its free slots."""
        for utterance in self._line.take(self.num_free, now):
            self._build_later(utterance.request)
            utterance.sequences = [StageSequence(utterance, stage.index, stage.policy.output) for stage in self.stages]
            self.ledger.count_admitted(utterance.request, now)
            self._feed(utterance.sequences[0], utterance.num_given, is_final=utterance.has_arrived)

    def arrive(self, utterance: Utterance, items: np.ndarray, *, is_final: bool) -> None:
        """Add items from another process as input of the first stage."""
        assert utterance.arriving is not None
        utterance.arriving.extend(items)
        utterance.has_arrived |= is_final
        if utterance.sequences and not utterance.request.has_ended:
            self._feed(utterance.sequences[0], len(items), is_final=is_final)

    def report(self, plan: Plan, report: Report) -> list[Follow]:
        """Process the report of a plan; return work to be done without the lock."""
        queue = self.stages[plan.stage]
        flight = queue.in_flight.pop(plan.number)
        self.ledger.metrics.count_stage(queue.policy.name, len(plan.steps) - len(report.skipped), report.seconds)
        for sequence in flight.begun:
            self.ledger.count_begun(sequence.request, self._clock())
        for part in plan.prefills:
            if part.key:
                queue.keep(part.key, report.saved.get(part.key))
        for slot, error in report.errors.items():
            sequence, units = flight.owners[slot]
            if sequence.units == units:  # otherwise it was launched ahead of a stop
                self.end(sequence.request, error)
        if report.result is not None:
            self._take_steps(queue, plan, report, flight.owners)
        for sequence, _ in flight.owners.values():
            if sequence.request.has_ended and not queue.policy.is_autoregressive:
                queue.release(sequence)
        follows, self._follows = self._follows, []
        return follows

    def _take_steps(self, queue: StageQueue, plan: Plan, report: Report, owners: Owners) -> None:
        result, num_items = report.result, 0
        assert result is not None
        for row, slot in enumerate(plan.steps):
            sequence, units = owners[slot]
            if sequence.units != units or sequence.request.has_ended:
                continue  # launched ahead of an end
            if slot in report.skipped:
                sequence.num_launched -= 1
            elif not result.valid[row]:
                error = GenerationError(f"{queue.policy.not_finite} (item {sequence.produced})")
                self.end(sequence.request, error)
            else:
                num_items += result.counts[row]
                self._take(queue, sequence, result, row)
        if queue.index == self.counted:
            self.ledger.metrics.rows.observe(len(plan.steps))
            self.ledger.metrics.frames += num_items

    def _take(self, queue: StageQueue, sequence: StageSequence, result: StepResult, row: int) -> None:
        """Process the output of one step of a sequence."""
        unit, count, is_over = sequence.unit, result.counts[row], result.stops[row]
        assert unit is not None
        sequence.num_steps += 1
        if count:
            sequence.produced += count
            if not queue.is_last or queue.policy.is_autoregressive:  # it may see its own last items
                items = result.values[row]
                sequence.items.extend(items if len(items) == count else items[:count])
            if not queue.is_last:
                following = sequence.utterance.sequences[queue.index + 1]
                following.available += count
                if following.available >= following.asks_at:
                    self._consider(following)
        if is_over or sequence.num_steps == unit.steps:
            sequence.request.was_cut |= queue.policy.stops and not is_over
            self._end_unit(queue, sequence)

    def _end_unit(self, queue: StageQueue, sequence: StageSequence) -> None:
        unit = sequence.unit
        assert unit is not None
        queue.running.remove(sequence)
        sequence.consumed += unit.consumes
        sequence.units += 1
        sequence.unit = None
        sequence.asks_at = 0
        if queue.policy.holds == "unit":
            queue.release(sequence)
        self._consider(sequence)

    def _feed(self, sequence: StageSequence, count: int, *, is_final: bool = False) -> None:
        sequence.available += count
        sequence.is_final |= is_final
        self._consider(sequence)

    def _consider(self, sequence: StageSequence) -> None:
        """Queue the next unit of a sequence without work, or finish it."""
        if sequence.unit is not None or sequence.next_unit is not None or sequence.is_done:
            return
        queue, utterance, progress = self.stages[sequence.stage], sequence.utterance, sequence.progress
        if sequence.is_final and queue.policy.is_done(progress):
            sequence.is_done = True
            queue.release(sequence)
            if not queue.index:
                utterance.release_prompt()
                self._line.charge(utterance.request, sequence.produced)
            if queue.is_last:
                self._end_utterance(utterance)
            else:
                if sequence.stage + 2 == len(self.stages):
                    self._continue(utterance)
                self._feed(utterance.sequences[sequence.stage + 1], 0, is_final=True)
        else:
            sequence.next_unit = queue.policy.next_unit(progress)
            if sequence.next_unit is None:
                sequence.asks_at = queue.policy.asks_at(progress)
            else:
                sequence.asks_at = NEVER  # until it is finished
                queue.ready.append(sequence)
                self._wake(queue.index)

    def _continue(self, utterance: Utterance) -> None:
        """Set the voice of the later utterances from the first, if none was asked for, and build the next."""
        request = utterance.request
        set_voice, request.set_voice = request.set_voice, None
        if set_voice is not None:
            items = [sequence.items.cut(0, len(sequence.items)) for sequence in utterance.sequences[:-1]]
            self._build_later(request, partial(set_voice, items))

    def _build_later(self, request: Request, prepare: Callable[[], None] = lambda: None) -> None:
        """Have a request's next utterances built after `prepare`, once the lock is released."""
        builds = request.take_later(MAX_QUEUED - self._line.num_waiting(request))

        def work() -> None:
            if not request.has_ended:
                prepare()
                self._extend(request, [build() for build in builds])

        if builds:
            self._follows.append(Follow(request, work))

    def _end_utterance(self, utterance: Utterance) -> None:
        """Continue with the request's next utterance, or end it after the last."""
        request, now = utterance.request, self._clock()
        request.front += 1
        request.utterances.remove(utterance)
        request.num_finished += utterance.sequences[self.counted].produced
        if request.has_more:
            request.speech.end_utterance(now)
            self._wake(len(self.stages) - 1)
        else:
            request.speech.finish(request.finish_reason, now, queue_s=request.queue_s, prefill_s=request.prefill_s)
            self.end(request)

    def end(self, request: Request, error: S1MiniError | None = None, *, reason: str = "spoken") -> None:
        """Release everything a request holds and notify its consumer; does nothing if it has ended."""
        if request.has_ended:
            return
        request.has_ended = True
        try:
            self._line.remove(request)
            for utterance in request.utterances:
                for sequence in utterance.sequences:
                    self.stages[sequence.stage].drop(sequence)
                if utterance.sequences and not utterance.sequences[0].is_done:
                    self._line.charge(request, utterance.sequences[0].produced)
        finally:
            self.ledger.end(request, error, reason, self._clock())
            self._on_end()
