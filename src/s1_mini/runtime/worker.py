"""A thread that carries out the plans of some stages, in turn.

Where a stage only launches its steps, the next plan is launched before the last one's report is taken in and its sound
given out: the device waits for no bookkeeping. If the stage is autoregressive, that is so while the last is still at
work; another stage's next plan is made when the last is over, since it chooses who is most in need of sound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from s1_mini.core.messages import Plan, Report
from s1_mini.core.request import Request
from s1_mini.core.scheduler import Scheduler
from s1_mini.core.watchdog import Heartbeat
from s1_mini.runtime.runner import StageRunner, as_error, attempt
from s1_mini.runtime.tasks import Tasks

FIRSTS_A_TURN = 2  # small first sounds that another stage's thread makes between its own steps


@dataclass(frozen=True)
class _Flight:
    plan: Plan
    look: Callable[[], Report]


class StageWorker:
    """One thread and its stages. `on_end` is called at its end, with the error that it died of, if it did."""

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
        """Work on the stages of `runners`, and on `tasks`; `helps` is a stage whose first sounds it may make, too."""
        self.name, self.heartbeat = name, Heartbeat()
        self._scheduler, self._runners, self._tasks, self._helps = scheduler, runners, tasks, helps
        self._enter, self._on_end = enter, on_end
        self._flights: dict[int, _Flight] = {}
        self.thread = threading.Thread(target=self._run, name=f"s1_mini {name}", daemon=True)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._enter()
            for runner in self._runners.values():
                runner.stage.capture()
            stages = list(self._runners)
            while self._flights or self._scheduler.wait(stages, self._has_tasks):
                with self.heartbeat:
                    self.turn()
        except BaseException as error:  # the end of a thread: `on_end` gets any error
            failure = error
        for runner in self._runners.values():
            runner.stage.close()
        self._on_end(failure)

    def turn(self) -> None:
        """Do the next thing of each stage, then of the tasks."""
        for stage, runner in self._runners.items():
            if runner.stage.is_overlapped:
                self._turn_ahead(stage, runner)
            else:
                self._turn(stage, runner)
        self._help()
        if self._tasks is not None:
            self._tasks.step(beside_speech=self._scheduler.has_speech)

    def _turn(self, stage: int, runner: StageRunner) -> None:
        room = self._scheduler.stages[stage].policy.items_a_turn
        while (plan := self._scheduler.plan(stage)) is not None:
            self._finish(plan, runner.run(plan))
            room -= len(plan.steps) * plan.size
            if room <= 0:
                return

    def _turn_ahead(self, stage: int, runner: StageRunner) -> None:
        flight, report = self._flights.pop(stage, None), None
        if flight is not None and not flight.plan.is_autoregressive:
            report = flight.look()
        plan = self._scheduler.plan(stage)
        if plan is not None:
            self._flights[stage] = _Flight(plan, runner.step(plan, runner.prepare(plan)))
        if flight is not None:
            self._finish(flight.plan, flight.look() if report is None else report)

    def _help(self) -> None:
        """Make first sounds for a thread that is at others'."""
        if self._helps is None or not self._scheduler.may_help(self._helps[0]):
            return
        stage, runner = self._helps
        for _ in range(FIRSTS_A_TURN):
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
