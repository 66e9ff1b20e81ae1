"""The requests of a chain of stages, from submission to their end, which comes exactly once.

Threads that carry out the plans of some stages ask `wait` and `plan` what to do, and `report` what came of it. One lock
guards everything; no stage works with it held.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from s1_mini.byte_cache import ByteCache
from s1_mini.core.ledger import Ledger
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

POLL_S = 0.1  # how often deadlines are looked at while nothing else happens
LOOK_S = 0.01  # and otherwise


class Scheduler:
    """Decides what each stage does next. `threads` says which stages are one thread's."""

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
        self.ledger = Ledger()
        threads = [list(range(len(policies)))] if threads is None else threads
        # Prefill takes nothing from those who wait for sound if that is made in another thread.
        self._puts_off = any(0 in stages and last in stages for stages in threads)
        self._lock = threading.Lock()
        changed = [threading.Condition(self._lock) for _ in threads]
        self._changed = {stage: changed[thread] for thread, stages in enumerate(threads) for stage in stages}
        self._closed, self._drains = threading.Event(), True
        self._cancelled: deque[Request] = deque()
        self._pipeline = Pipeline(
            self.stages, self.ledger, line, wake=self._wake, on_end=self._wake_all, extend=self.extend, clock=clock
        )
        self._next_look = 0.0  # for requests whose time is over

    # ---- for callers ----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request in. Raises `QueueFullError`, or `EngineNotReadyError` once closed."""
        with self._lock:
            if self._closed.is_set():
                raise EngineNotReadyError("the engine is stopping and takes in nothing more")
            # A guess of when there will be room: an utterance takes some seconds, and all slots work at once.
            self.line.submit(request, max(1.0, 2.0 * self.line.num_requests / self.stages[0].policy.slots))
            request.speech.queue.on_take = self._look_again
            self.ledger.add(request)
            if self._closed.is_set():  # by `tell_all`, which does not wait for the lock and may have missed it
                self.ledger.tell_end(request, EngineNotReadyError("the engine has died"))
            self._wake(0)

    def cancel(self, request: Request) -> None:
        """End a request whose listener has gone, soon; does nothing if it has ended.

        It may be called by the garbage collector, in any thread, even in one that holds the lock: so it takes none.
        """
        self._cancelled.append(request)
        self._look_again()

    def _look_again(self) -> None:
        """Wake all threads, unless the lock is held: then they look for themselves within `POLL_S`."""
        if self._lock.acquire(blocking=False):
            self._wake_all()
            self._lock.release()

    def close(self, *, drains: bool) -> None:
        """Take in no more; what was taken in is finished, or left where it is."""
        with self._lock:
            self._drains = drains
            self._closed.set()
            for request in self.ledger.all():
                request.speech.set_window(NEVER)  # its consumer may be who waits for the end
            self._wake_all()

    def end_all(self, error: S1MiniError) -> None:
        """End every request with an error."""
        with self._lock:
            for request in self.ledger.all():
                try:
                    self._pipeline.end(request, error)
                except Exception:  # of bookkeeping that is broken; the listener has been told, and the others must be
                    logger.exception("the end of a request failed")

    def tell_all(self, error: S1MiniError) -> None:
        """Take in no more and tell every listener, in spite of a thread that does not come back, even with the lock."""
        self._drains = False
        self._closed.set()
        held = self._lock.acquire(timeout=LOOK_S)
        try:
            for request in self.ledger.all():
                self.ledger.tell_end(request, error)
        finally:
            if held:
                self._lock.release()

    # ---- for the threads of stages --------------------------------------------------------------------------------

    def wait(self, stages: Sequence[int], has_other_work: Callable[[], bool] = lambda: False) -> bool:
        """Wait for work at some stages, all of one thread; tell whether to go on at all."""
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
        """Let the thread of a stage look for work."""
        with self._lock:
            self._wake(stage)

    def plan(self, stage: int, *, only_first: bool = False) -> Plan | None:
        """Choose what a stage does next; None if there is nothing to do. With `only_first` small first sounds alone."""
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
        """Give out the sound of a plan of the last stage; called before `report`, and without the lock."""
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
        """Take what came of a plan; give what is to be done without the lock."""
        with self._lock:
            follows = self._pipeline.report(plan, report)
            self._wake(plan.stage)
            if plan.stage:
                self._wake(plan.stage - 1)  # which may have waited for this one
            return follows

    def extend(self, request: Request, utterances: list[Utterance]) -> None:
        """Let further utterances of a request wait that was taken in before."""
        with self._lock:
            request.is_building = False
            if not request.has_ended:
                request.utterances += utterances
                self.line.extend(request, utterances)
                self._wake(0)

    def arrive(self, utterance: Utterance, items: np.ndarray, *, is_final: bool) -> None:
        """Take in items [n, *shape] that another process has made for the first stage."""
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
        """Whether an autoregressive stage has something to do."""
        return any(queue.reading or queue.running for queue in self.stages if queue.policy.is_autoregressive)

    # ---- with the lock held ---------------------------------------------------------------------------------------

    def _end_unwanted(self, now: float) -> None:
        """End what nobody waits for any more, and what takes too long."""
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
