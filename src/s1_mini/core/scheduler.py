"""Scheduler of a chain of stages: requests from submission to their end, which comes exactly once.

Stage threads call `wait` and `plan`, carry out the plan, and call `report`. One lock guards everything; no stage
computes while it is held.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from s1_mini.byte_cache import ByteCache
from s1_mini.core.ledger import RequestTracker
from s1_mini.core.messages import Plan, Report, Saved
from s1_mini.core.pipeline import Follow, Pipeline
from s1_mini.core.request import Request, Utterance
from s1_mini.core.speech import NEVER
from s1_mini.core.stage import StagePolicy
from s1_mini.core.stage_queue import StageQueue
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import (
    EngineNotReadyError,
    RequestTimeoutError,
    S1MiniError,
)

logger = logging.getLogger(__name__)

POLL_S = 0.1  # poll interval for deadlines while idle
LOOK_S = 0.01  # poll interval for deadlines while busy


class Scheduler:
    """Decides what each stage does next. `threads` lists the stages of each thread."""

    def __init__(
        self,
        policies: Sequence[StagePolicy],
        line: WaitingLine,
        prefixes: ByteCache[Saved],
        *,
        threads: Sequence[Sequence[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        last = len(policies) - 1
        self.stages = [StageQueue(i, policy, prefixes, is_last=i == last) for i, policy in enumerate(policies)]
        self.line, self.prefixes, self.clock = line, prefixes, clock
        self.ledger = RequestTracker()
        threads = [list(range(len(policies)))] if threads is None else threads
        # Prefill does not delay audio that another thread generates.
        self._puts_off = any(0 in stages and last in stages for stages in threads)
        self._lock = threading.Lock()
        changed = [threading.Condition(self._lock) for _ in threads]
        self._changed = {stage: changed[thread] for thread, stages in enumerate(threads) for stage in stages}
        self._closed, self._drains = threading.Event(), True
        self._cancelled: deque[Request] = deque()
        self._pipeline = Pipeline(
            self.stages, self.ledger, line, wake=self._wake, on_end=self._wake_all, extend=self.extend, clock=clock
        )
        self._next_look = 0.0  # for requests past their deadline

    # ---- called by the engine ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `QueueFullError`, or `EngineNotReadyError` once closed."""
        with self._lock:
            if self._closed.is_set():
                raise EngineNotReadyError("the engine is stopping and accepts no further requests")
            # An estimate: an utterance takes some seconds, and all slots work at once.
            self.line.submit(request, max(1.0, 2.0 * self.line.num_requests / self.stages[0].policy.slots))
            request.speech.queue.on_take = self._look_again
            self.ledger.add(request)
            if self._closed.is_set():  # by `tell_all`, which does not wait for the lock and may have missed it
                self.ledger.tell_end(request, EngineNotReadyError("the engine has died"))
            self._wake(0)

    def cancel(self, request: Request) -> None:
        """Cancel a request soon; does nothing if it has ended.

        Takes no lock: the garbage collector may call it in any thread, even in one that holds the lock.
        """
        self._cancelled.append(request)
        self._look_again()

    def _look_again(self) -> None:
        """Wake all threads, unless the lock is held: then they notice within `POLL_S`."""
        if self._lock.acquire(blocking=False):
            self._wake_all()
            self._lock.release()

    def close(self, *, drains: bool) -> None:
        """Accept no further requests; finish the accepted ones, or leave them unfinished."""
        with self._lock:
            self._drains = drains
            self._closed.set()
            for request in self.ledger.all():
                request.speech.set_window(NEVER)  # the consumer may be the caller that waits for the end
            self._wake_all()

    def end_all(self, error: S1MiniError) -> None:
        """End every request with an error."""
        with self._lock:
            for request in self.ledger.all():
                try:
                    self._pipeline.end(request, error)
                except Exception:  # broken bookkeeping; its consumer was notified, and the others must be
                    logger.exception("the end of a request failed")

    def tell_all(self, error: S1MiniError) -> None:
        """Accept no further requests and end all with an error, even if a thread hangs while it holds the lock."""
        self._drains = False
        self._closed.set()
        held = self._lock.acquire(timeout=LOOK_S)
        try:
            for request in self.ledger.all():
                self.ledger.tell_end(request, error)
        finally:
            if held:
                self._lock.release()

    # ---- called by stage threads ------------------------------------------------------------------------------------

    def wait(self, stages: Sequence[int], has_other_work: Callable[[], bool] = lambda: False) -> bool:
        """Wait for work at the stages of one thread; return False when the thread should end."""
        changed = self._changed[stages[0]]
        with self._lock:
            while True:
                now = self.clock()
                self._end_unwanted(now)
                if self._closed.is_set() and (not self._drains or not (self.ledger or has_other_work())):
                    self._wake_all()
                    return False
                if has_other_work() or any(self._pipeline.has_work(stage, now) for stage in stages):
                    return True
                wakes = self.line.wakes(now, self._pipeline.num_free) if 0 in stages else None
                changed.wait(min(POLL_S, wakes) if wakes else POLL_S)

    def wake(self, stage: int) -> None:
        """Wake the thread of a stage."""
        with self._lock:
            self._wake(stage)

    def plan(self, stage: int, *, only_first: bool = False) -> Plan | None:
        """Return a stage's next plan, or None. With `only_first` only small units of first audio."""
        with self._lock:
            now, queue = self.clock(), self.stages[stage]
            self._end_unwanted(now)
            if stage == 0:
                self._pipeline.admit(now)
            if not (self._drains or not self._closed.is_set()):
                return None
            holds_back = stage > 0 and self._pipeline.is_behind(stage)
            runs_dry = self._puts_off and self.stages[-1].urgency.somebody_runs_dry
            puts_off = stage == 0 and queue.puts_off(runs_dry=runs_dry)
            plan = queue.plan(now, only_first=only_first, holds_back=holds_back, puts_off=puts_off)
            return None if plan.is_empty else plan

    def deliver(self, plan: Plan, report: Report) -> None:
        """Send the audio of a plan of the last stage; called before `report`, without the lock."""
        result, now = report.result, self.clock()
        if result is None:
            return
        owners = self.stages[plan.stage].in_flight[plan.number].owners
        for row, slot in enumerate(plan.steps):
            sequence, units = owners[slot]
            unit = sequence.unit if sequence.units == units else None  # else it was launched ahead of a stop
            is_good = slot not in report.errors and slot not in report.skipped and result.valid[row]
            if is_good and unit is not None and not sequence.request.has_ended:
                sequence.request.speech.push(result.values[row][: result.counts[row]], unit.consumes, now)

    def report(self, plan: Plan, report: Report) -> list[Follow]:
        """Process the report of a plan; return work to be done without the lock."""
        with self._lock:
            follows = self._pipeline.report(plan, report)
            self._wake(plan.stage)
            if plan.stage:
                self._wake(plan.stage - 1)  # it may have waited for this stage
            return follows

    def extend(self, request: Request, utterances: list[Utterance]) -> None:
        """Queue further utterances of an accepted request."""
        with self._lock:
            request.is_building = False
            if not request.has_ended:
                request.utterances += utterances
                self.line.extend(request, utterances)
                self._wake(0)

    def arrive(self, utterance: Utterance, items: np.ndarray, *, is_final: bool) -> None:
        """Add items [n, *shape] from another process as input of the first stage."""
        with self._lock:
            self._pipeline.arrive(utterance, items, is_final=is_final)

    def end(self, request: Request, error: S1MiniError) -> None:
        """End a request with an error; does nothing if it has ended."""
        with self._lock:
            self._pipeline.end(request, error)

    def may_help(self, stage: int) -> bool:
        """Whether a thread of the first stage has time for this one: it is busy, and no prompts wait to be read."""
        return bool(self.stages[stage].in_flight) and not (self.stages[0].reading or self.stages[0].ready)

    @property
    def has_speech(self) -> bool:
        """Whether an autoregressive stage has work."""
        return any(queue.reading or queue.running for queue in self.stages if queue.policy.is_autoregressive)

    # ---- with the lock held -----------------------------------------------------------------------------------------

    def _end_unwanted(self, now: float) -> None:
        """End cancelled requests and those past their deadline."""
        while self._cancelled:
            request = self._cancelled.popleft()
            if not request.has_ended:
                request.speech.finish("cancelled", now, queue_s=request.queue_s, prefill_s=request.prefill_s)
                self._pipeline.end(request, reason="cancelled")
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for request in self.ledger.late(now):
            made = request.num_finished
            made += sum(
                each.sequences[self._pipeline.counted].produced for each in request.utterances if each.sequences
            )
            self._pipeline.end(request, RequestTimeoutError(f"not finished in time, after {made} frames"))

    def _wake(self, stage: int) -> None:
        self._changed[stage].notify_all()

    def _wake_all(self) -> None:
        for changed in set(self._changed.values()):
            changed.notify_all()
