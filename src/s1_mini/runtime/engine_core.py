"""The threads of a chain of stages: what they do, and what happens if one of them dies or hangs.

Each accepted request ends exactly once, with audio or with its own error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

import torch

from s1_mini.byte_cache import ByteCache
from s1_mini.core.messages import Plan, Report, Saved
from s1_mini.core.request import Request
from s1_mini.core.scheduler import NONE, Scheduler
from s1_mini.core.stage import StagePolicy
from s1_mini.core.stage_queue import Slots
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import EngineError, EngineNotReadyError
from s1_mini.runtime.runner import StageRunner, as_error, attempt
from s1_mini.runtime.stage import Stage
from s1_mini.runtime.tasks import Steps, Tasks

logger = logging.getLogger(__name__)

JOIN_S = 2.0  # how long `stop` waits for a thread that hung, in case it continues
HELPED_CALLS = 2  # maximum number of small calls for first audio that the first stage's thread makes between its steps
WATCH_S = 1.0  # poll interval of the watchdog; for limits below 4 s, a quarter of the limit

Result = TypeVar("Result")


@dataclass(frozen=True)
class Threads:
    """The threads of an engine. Tasks are run by the thread without stages or, if there is none, by the first one."""

    stages: Mapping[str, Sequence[int]]  # the stages of each thread, by the thread's name
    helps: bool = False  # whether the first thread generates first audio while the last stage's thread is busy
    enter: Callable[[int], None] = lambda _: None  # each thread calls it at its start, with its first stage or NONE


class StageWorker:
    """A thread that carries out the plans of its stages in turn. When it ends, `on_end` gets its error, or None.

    For a stage that is overlapped, the next plan is launched before the report of the previous plan is processed and
    its audio delivered, so that the device waits less for the host. An autoregressive stage is planned while its
    previous step runs. Any other stage is planned only when its previous call has ended, because the plan depends on
    which client needs audio most urgently, unless at least `BACKLOG` units wait.
    """

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        runners: Mapping[int, StageRunner],
        *,
        enter: Callable[[], None],
        on_end: Callable[[BaseException | None], None],
        tasks: Tasks | None = None,
        helps: tuple[int, StageRunner] | None = None,
    ) -> None:
        """`helps` is a stage of another thread for which this thread may generate first audio."""
        self.name = name
        self.current_turn: int | None = None  # number of the turn; None while the thread waits for work
        self._scheduler, self._runners, self._tasks, self._helps = scheduler, runners, tasks, helps
        self._enter, self._on_end = enter, on_end
        self._in_flight: dict[int, tuple[Plan, Callable[[], Report]]] = {}  # by stage
        self.thread = threading.Thread(target=self._run, name=f"s1_mini {name}", daemon=True)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._enter()
            for runner in self._runners.values():
                runner.stage.capture()
            stages, numbers = list(self._runners), count()
            while self._in_flight or self._scheduler.wait(stages, self._has_tasks):
                self.current_turn = next(numbers)
                self.turn()
                self.current_turn = None
        except BaseException as error:  # the thread ends, and `on_end` receives any error
            failure = error
        self.current_turn = None
        for runner in self._runners.values():
            runner.stage.close()
        self._on_end(failure)

    def turn(self) -> None:
        """Carry out the next plan of each stage, then a step of the tasks."""
        for stage, runner in self._runners.items():
            if runner.stage.is_overlapped:
                self._launch_ahead(stage, runner)
            else:
                self._run_plans(stage, runner)
        self._help()
        if self._tasks is not None:
            self._tasks.step(beside_speech=bool(self._runners) and self._scheduler.has_speech)

    def _run_plans(self, stage: int, runner: StageRunner) -> None:
        items_left = self._scheduler.stages[stage].policy.items_a_turn
        while (plan := self._scheduler.plan(stage)) is not None:
            self._finish(plan, runner.run(plan))
            items_left -= len(plan.steps) * plan.size
            if items_left <= 0:
                return

    def _launch_ahead(self, stage: int, runner: StageRunner) -> None:
        last, report = self._in_flight.pop(stage, None), None
        if last is not None and not (last[0].is_autoregressive or self._scheduler.has_backlog(stage)):
            report = last[1]()
        plan = self._scheduler.plan(stage)
        if plan is not None:
            self._in_flight[stage] = plan, runner.step(plan, runner.prepare(plan))
        if last is not None:
            self._finish(last[0], last[1]() if report is None else report)

    def _help(self) -> None:
        if self._helps is None or not self._scheduler.may_help(self._helps[0]):
            return
        stage, runner = self._helps
        for _ in range(HELPED_CALLS):
            plan = self._scheduler.plan(stage, only_first=True)
            if plan is None:
                return
            self._finish(plan, runner.run(plan))

    def _finish(self, plan: Plan, report: Report) -> None:
        if plan.stage == len(self._scheduler.stages) - 1:
            self._scheduler.deliver(plan, report)
        for follow in self._scheduler.report(plan, report):
            attempt(follow.work, partial(self._fail, follow.request))

    def _fail(self, request: Request, error: Exception) -> None:
        self._scheduler.end(request, as_error(error))

    def _has_tasks(self) -> bool:
        return self._tasks is not None and len(self._tasks) > 0


class Watchdog:
    """Calls `on_stuck` once, with the name of a worker, if a turn of the worker takes `limit_s` seconds.

    Time is counted in polls, so that the time for which a machine is suspended does not count.
    """

    def __init__(self, workers: Sequence[StageWorker], limit_s: float, on_stuck: Callable[[str, float], None]) -> None:
        self._workers, self._limit_s, self._on_stuck = workers, limit_s, on_stuck
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="s1_mini watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = min(WATCH_S, self._limit_s / 4)
        seen: dict[str, tuple[int | None, float]] = {}  # by worker: its turn, and how many seconds the turn has taken
        while not self._over.wait(pause):
            for worker in self._workers:
                turn, (last, seconds) = worker.current_turn, seen.get(worker.name, (None, 0.0))
                seconds = seconds + pause if turn is not None and turn == last else 0.0
                seen[worker.name] = turn, seconds
                if seconds >= self._limit_s:
                    self._on_stuck(worker.name, seconds)
                    return


class EngineCore:
    """Runs requests through the stages of a chain."""

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
        self.ledger = self.scheduler.ledger  # the accepted requests that have not ended, and the metrics
        self.runners = [StageRunner(stage, self._free_memory) for stage in stages]
        self.failure: BaseException | None = None  # error of the first thread that died or hung
        self._clears_memory = clears_memory and any(stage.device.type == "cuda" for stage in stages)
        self._tasks = Tasks(line.max_size, self._free_memory, clock=clock)
        own = next((name for name, numbers in threads.stages.items() if not numbers), None)
        self._task_stage, task_thread = (0, next(iter(threads.stages))) if own is None else (NONE, own)
        self.workers = [
            StageWorker(
                name,
                self.scheduler,
                {stage: self.runners[stage] for stage in numbers},
                enter=partial(threads.enter, numbers[0] if numbers else NONE),
                on_end=self._on_end,
                tasks=self._tasks if name == task_thread else None,
                helps=(len(stages) - 1, self.runners[-1]) if threads.helps and 0 in numbers else None,
            )
            for name, numbers in threads.stages.items()
        ]
        self._num_ended, self._ending = 0, threading.Lock()
        self._over = threading.Event()  # set when every request and task has ended
        self._is_stuck = False
        self._watchdog = Watchdog(self.workers, stuck_after_s, self._on_stuck)

    def start(self) -> None:
        for worker in self.workers:
            worker.thread.start()

    def watch(self) -> None:
        """Start the watchdog, which ends all requests if a thread hangs."""
        self._watchdog.start()

    def submit(self, request: Request) -> None:
        """Accept a request, whose utterances `Scheduler.open` adds. Never waits.

        Raises `EngineError` if a thread has failed. A request after `stop` ends with `EngineNotReadyError`.
        """
        self._check()
        self.scheduler.submit(request)

    def do(self, make: Callable[[], Steps[Result]]) -> Future[Result]:
        """Run a task in steps that each end at a `yield`, between plans or in its own thread; return its future.

        Raises the errors of `submit`.
        """
        self._check()
        future = self._tasks.submit(make)
        self.scheduler.wake(self._task_stage)
        return future

    def stop(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        """Accept no more requests. If `drains`, finish the accepted requests, for at most `timeout_s` seconds.

        Requests that are not finished then end with `EngineNotReadyError`.
        """
        self.scheduler.close(drains=drains and self.failure is None)
        if not self._over.wait(timeout_s):
            self.scheduler.close(drains=False)
            self._over.wait()
        for worker in self.workers:
            worker.thread.join(JOIN_S if self._is_stuck else None)

    @property
    def is_alive(self) -> bool:
        """Whether all threads run and none hangs."""
        return self.failure is None and all(worker.thread.is_alive() for worker in self.workers)

    @property
    def slots(self) -> Slots:
        return self.scheduler.stages[0].slots

    def _check(self) -> None:
        if self.failure is not None:
            raise EngineError(f"the engine has failed; restart it: {self.failure!r}")

    def _free_memory(self) -> None:
        """Evict cached prefixes, because memory has run out; they can be computed again."""
        self.ledger.metrics.out_of_memory += 1
        freed = self.prefixes.shrink()
        if self._clears_memory:
            torch.cuda.empty_cache()
        logger.warning("out of memory: released %.1f MB of cached prefixes, retrying", freed / 1e6)

    def _on_end(self, failure: BaseException | None) -> None:
        """Record the end of the calling thread; the last thread ends all remaining requests."""
        if failure is not None:
            self.failure = self.failure or failure
            logger.error("an engine thread died", exc_info=failure)
            self.scheduler.close(drains=False)
        with self._ending:
            self._num_ended += 1
            if self._num_ended < len(self.workers):
                return
        reason = "has died" if self.failure else "was stopped"
        try:
            self.scheduler.end_all(EngineNotReadyError(f"the engine {reason} during this request"))
            self._tasks.end(EngineNotReadyError(f"the engine {reason}"))
        finally:
            self._watchdog.stop()
            self._over.set()

    def _on_stuck(self, worker: str, seconds: float) -> None:
        """End all requests because a thread hangs. Called by the watchdog, which does not touch the thread's state."""
        self.failure = self.failure or EngineError(f"the {worker} thread has been stuck for {seconds:.4g} s")
        self._is_stuck = True
        try:
            self.scheduler.tell_all(EngineNotReadyError("the engine has died during this request"))
            self._tasks.end(EngineNotReadyError("the engine has died"), tells_only=True)
        finally:
            self._over.set()
        logger.critical("the %s thread has been stuck for %.4g s; the engine is stopped", worker, seconds)
