"""The threads of one chain of stages, what is handed to them, and what becomes of it if one of them dies or hangs.

Each request that was taken in ends exactly once, with sound or with an error of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import torch

from s1_mini.byte_cache import ByteCache
from s1_mini.core.messages import Saved
from s1_mini.core.request import Request
from s1_mini.core.scheduler import Scheduler
from s1_mini.core.stage import StagePolicy
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.core.watchdog import Watchdog
from s1_mini.exceptions import EngineError, EngineNotReadyError
from s1_mini.metrics import EngineMetrics
from s1_mini.runtime.runner import StageRunner
from s1_mini.runtime.stage import Stage
from s1_mini.runtime.tasks import Steps, Tasks
from s1_mini.runtime.worker import StageWorker

logger = logging.getLogger(__name__)

GRACE_S = 2.0  # for a thread that was given up, and comes back after all

Result = TypeVar("Result")


@dataclass(frozen=True)
class Threads:
    """Which stages share a thread, by the threads' names; the first works on tasks, too."""

    stages: Mapping[str, Sequence[int]]
    helps: bool = False  # whether the first thread makes first sounds where that of the last stage is at others'
    enter: Callable[[int], None] = lambda _: None  # called by each thread before all else, with its first stage


class Room(Protocol):
    """The slots of the first stage."""

    count: int

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""


class Core(Protocol):
    """What takes requests through the stages of a family, wherever these are."""

    line: WaitingLine
    prefixes: ByteCache[Saved]
    metrics: EngineMetrics

    def start(self) -> None:
        """Begin to work."""

    def watch(self) -> None:
        """Give up from now on, and tell all who wait, if something does not come back from what it does."""

    def submit(self, request: Request) -> None:
        """Take a request in. Raises `QueueFullError`, or `EngineNotReadyError` once stopped."""

    def cancel(self, request: Request) -> None:
        """End a request whose listener has gone; does nothing if it has ended."""

    def do(self, make: Callable[[], Steps[Result]]) -> Future[Result]:
        """Do what `make` begins, one `yield` at a time; give its result. Raises as `submit`."""

    def stop(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        """Take in no more; finish what was taken in, or end it with `EngineNotReadyError`."""

    @property
    def is_alive(self) -> bool:
        """Whether it works."""

    @property
    def num_requests(self) -> int:
        """Requests that were taken in and have not ended."""

    @property
    def slots(self) -> Room:
        """Utterances that are spoken at once."""


class EngineCore:
    """Runs requests through the stages of one family, in threads of its own, once started."""

    def __init__(
        self,
        policies: Sequence[StagePolicy],
        stages: Sequence[Stage],
        line: WaitingLine,
        prefixes: ByteCache[Saved],
        threads: Threads,
        *,
        clears_memory: bool = True,
        stuck_after_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = Scheduler(policies, line, prefixes, threads=list(threads.stages.values()), clock=clock)
        self.line, self.prefixes = line, prefixes
        self.runners = [StageRunner(stage, self._let_go) for stage in stages]
        self.failure: BaseException | None = None  # what killed a thread
        self._clears_memory = clears_memory and any(stage.device.type == "cuda" for stage in stages)
        self._tasks = Tasks(line.max_size, self._let_go, clock=clock)
        self.workers = [
            StageWorker(
                name,
                self.scheduler,
                {stage: self.runners[stage] for stage in numbers},
                enter=partial(threads.enter, numbers[0]),
                on_end=self._count_end,
                tasks=None if at else self._tasks,
                helps=(len(stages) - 1, self.runners[-1]) if threads.helps and not at else None,
            )
            for at, (name, numbers) in enumerate(threads.stages.items())
        ]
        self._num_ended, self._ending = 0, threading.Lock()
        self._over = threading.Event()  # nobody waits for anything any more
        self._is_given_up = False
        heartbeats = {f"the thread of {worker.name}": worker.heartbeat for worker in self.workers}
        self._watchdog = Watchdog(heartbeats, stuck_after_s, self._give_up)

    def start(self) -> None:
        """Begin to work."""
        for worker in self.workers:
            worker.thread.start()

    def watch(self) -> None:
        """Give up from now on, and tell all who wait, if a thread does not come back from what it does."""
        self._watchdog.start()

    def submit(self, request: Request) -> None:
        """Take a request in. Raises `QueueFullError`, or `EngineNotReadyError` once stopped."""
        self._check()
        self.scheduler.submit(request)

    def cancel(self, request: Request) -> None:
        """End a request whose listener has gone; does nothing if it has ended."""
        self.scheduler.cancel(request)

    def do(self, make: Callable[[], Steps[Result]]) -> Future[Result]:
        """Have the first thread do what `make` begins between its plans, one `yield` at a time; give its result.

        Raises `QueueFullError`, or `EngineNotReadyError` once stopped.
        """
        self._check()
        future = self._tasks.submit(make)
        self.scheduler.wake(0)
        return future

    def stop(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        """Take in no more; finish what was taken in, or end it with `EngineNotReadyError`."""
        self.scheduler.close(drains=drains and self.failure is None)
        if not self._over.wait(timeout_s):  # it took too long: give up on the rest
            self.scheduler.close(drains=False)
            self._over.wait()
        for worker in self.workers:
            worker.thread.join(GRACE_S if self._is_given_up else None)

    @property
    def is_alive(self) -> bool:
        """Whether all threads run, and come back from what they do."""
        return self.failure is None and all(worker.thread.is_alive() for worker in self.workers)

    @property
    def slots(self) -> Room:
        """Slots of the first stage."""
        return self.scheduler.stages[0].slots

    @property
    def metrics(self) -> EngineMetrics:
        """What it counts."""
        return self.scheduler.ledger.metrics

    @metrics.setter
    def metrics(self, metrics: EngineMetrics) -> None:
        self.scheduler.ledger.metrics = metrics

    @property
    def num_requests(self) -> int:
        """Requests that were taken in and have not ended."""
        return len(self.scheduler.ledger.requests)

    def _check(self) -> None:
        if self.failure is not None:
            raise EngineError(f"the engine has failed and must be started anew: {self.failure!r}")

    def _let_go(self) -> None:
        """Give back what can be made anew: the memory has run out."""
        self.scheduler.ledger.metrics.out_of_memory += 1
        freed = self.prefixes.shrink()
        if self._clears_memory:
            torch.cuda.empty_cache()
        logger.warning("out of memory: let go of %.1f MB of prefixes, trying again", freed / 1e6)

    def _count_end(self, failure: BaseException | None) -> None:
        """Take note of a thread's end, in that thread; the last tells all who still wait."""
        if failure is not None:
            self.failure = self.failure or failure
            logger.error("a thread of the engine has died", exc_info=failure)
            self.scheduler.close(drains=False)
        with self._ending:
            self._num_ended += 1
            if self._num_ended < len(self.workers):
                return
        reason = "has died" if self.failure else "was stopped"
        try:
            self.scheduler.end_all(EngineNotReadyError(f"the engine {reason} while this was being spoken"))
            self._tasks.end(EngineNotReadyError(f"the engine {reason}"))
        finally:
            self._watchdog.stop()
            self._over.set()

    def _give_up(self, thread: str, seconds: float) -> None:
        """Tell all who wait that a thread does not come back, from the watchdog's. What it holds is left to it."""
        self.failure = self.failure or EngineError(f"{thread} has not come back for {seconds:.4g} s")
        self._is_given_up = True
        try:
            self.scheduler.tell_all(EngineNotReadyError("the engine has died while this was being spoken"))
            self._tasks.end(EngineNotReadyError("the engine has died"), tells_only=True)
        finally:
            self._over.set()
        logger.critical("%s has not come back for %.4g s; the engine is given up", thread, seconds)
