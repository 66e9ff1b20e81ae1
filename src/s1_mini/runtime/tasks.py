"""Tasks such as encoding a reference, which a thread runs in small steps; a stage's thread, between its plans."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from s1_mini.exceptions import EngineNotReadyError, QueueFullError
from s1_mini.runtime.runner import as_error, attempt, with_memory

Result = TypeVar("Result")
Steps = Generator[None, None, Result]

USUAL_S = 0.1  # first estimate of the duration of a task
SPEAKING_SHARE = 3.0  # seconds of generation for each second of tasks, while there are requests


class Durations:
    """The usual duration of work that waits in a queue: a mean in which recent work counts most."""

    def __init__(self, usual_s: float) -> None:
        """`usual_s` is assumed until work has been measured."""
        self._usual_s = usual_s

    def add(self, seconds: float) -> None:
        self._usual_s += 0.2 * (seconds - self._usual_s)

    def retry_after_s(self, num_waiting: int, num_threads: int = 1) -> float:
        """Return the seconds until half of the waiting work is done, at least 1."""
        return max(1.0, self._usual_s * num_waiting / 2 / num_threads)


class _Task:
    """One task. `make` returns its generator, again after an out-of-memory error."""

    def __init__(self, make: Callable[[], Steps[Any]]) -> None:
        self.future: Future[Any] = Future()
        self._make = make
        self._steps: Steps[Any] | None = None

    @torch.inference_mode()
    def step(self) -> bool:
        """Run the next step; return whether it was the last. Raises the task's error; the next call restarts it."""
        steps = self._make() if self._steps is None else self._steps
        self._steps = None  # so that the next call restarts the task if this step fails
        try:
            next(steps)
        except StopIteration as end:
            with suppress(InvalidStateError):
                self.future.set_result(end.value)
            return True
        self._steps = steps
        return False

    def end(self, error: Exception) -> None:
        """End the task with an error, unless the task has ended or was cancelled."""
        if self._steps is not None:
            self._steps.close()
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Set the error of the future, without ending a step in progress. Thread-safe."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Tasks:
    """A queue of at most `max_size` tasks for one thread."""

    def __init__(
        self, max_size: int, free_memory: Callable[[], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_size, self._free_memory, self._clock = max_size, free_memory, clock
        self._tasks: deque[_Task] = deque()
        self._is_open, self._lock = True, threading.Lock()
        self._next = 0.0  # earliest time of the next step during generation
        self._started: float | None = None  # time of the first task's first step
        self._durations = Durations(USUAL_S)

    def __len__(self) -> int:
        return len(self._tasks)

    def submit(self, make: Callable[[], Steps[Result]]) -> Future[Result]:
        """Queue a task, the generator that `make` returns; each of its `yield`s ends a step. Return its future.

        Raises `QueueFullError` or `EngineNotReadyError`.
        """
        task = _Task(make)
        with self._lock:
            if not self._is_open:
                raise EngineNotReadyError("the engine is shutting down and no longer accepts requests")
            if len(self._tasks) >= self._max_size:
                retry_after_s = self._durations.retry_after_s(len(self._tasks))
                raise QueueFullError(len(self._tasks), self._max_size, retry_after_s, "tasks")
            self._tasks.append(task)
        return task.future

    def step(self, *, beside_speech: bool) -> None:
        """Run the next step of the first task. With `beside_speech`, tasks only get a share of the time."""
        if not self._tasks or (beside_speech and self._clock() < self._next):
            return
        task, started = self._tasks[0], self._clock()
        if self._started is None:
            self._started = started
        work = partial(with_memory, task.step, self._free_memory)
        was_cancelled = task.future.cancelled()
        if was_cancelled or attempt(work, lambda error: task.end(as_error(error))) is not False:
            self._tasks.popleft()
            if not was_cancelled:
                self._durations.add(self._clock() - self._started)
            self._started = None
        now = self._clock()
        self._next = now + SPEAKING_SHARE * (now - started)

    def end(self, error: Exception, *, tells_only: bool = False) -> None:
        """Accept no more tasks, and end all queued tasks with an error.

        With `tells_only`, only their futures are set, because a thread may hang in a step.
        """
        with self._lock:
            self._is_open = False
        for task in list(self._tasks):
            (task.fail if tells_only else task.end)(error)
