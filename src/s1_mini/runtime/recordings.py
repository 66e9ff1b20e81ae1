"""Recordings in work: a few at once, some more in line, and no others. Decoding and encoding one takes seconds.

Requests without a recording never wait here. What nobody wants any more leaves the line at once, with what it holds,
and ends soon if it has begun: work calls `check` now and then, which raises `CancelledError` then.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from s1_mini.exceptions import EngineNotReadyError, QueueFullError

Result = TypeVar("Result")
Check = Callable[[], None]

MAX_THREADS = 4
USUAL_S = 1.0  # that a recording takes, before one has been seen
ENDING_S = 1.0  # given at a stop to work that has begun and is unwanted now


class _Waiting(NamedTuple):
    future: Future[Any]
    work: Callable[[Check], Any]


class Recordings:
    """Runs work in the order in which it came, in a few threads that begin with the first of it."""

    def __init__(self, *, max_waiting: int, threads: int | None = None) -> None:
        self.max_waiting = max_waiting
        self._num_threads = threads or max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
        self._waiting: deque[_Waiting] = deque()
        self._running: set[Future[Any]] = set()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._usual_s = USUAL_S

    def submit(self, work: Callable[[Check], Result]) -> Future[Result]:
        """Let `work` wait for its turn; cancelling the future, at any time, ends it.

        Raises `QueueFullError`, or `EngineNotReadyError` once closed.
        """
        future: Future[Result] = Future()
        with self._changed:
            if self._is_closed:
                raise EngineNotReadyError("the engine is stopping and takes in nothing more")
            if len(self._waiting) >= self.max_waiting:
                raise QueueFullError(len(self._waiting), self.max_waiting, self._retry_after_s(), "recordings")
            self._waiting.append(_Waiting(future, work))
            if len(self._threads) < self._num_threads:
                self._threads.append(threading.Thread(target=self._run, name="s1_mini recordings", daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        future.add_done_callback(self._forget)
        return future

    def close(self, *, drains: bool, timeout_s: float | None = None) -> None:
        """Take in nothing more; finish what was taken in, or end it, as after `timeout_s`, with an error."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._is_closed = True
            if drains:
                left = None if ends is None else max(0.0, ends - time.monotonic())
                self._changed.wait_for(lambda: not self._waiting and not self._running, left)
            unfinished = [each.future for each in self._waiting] + list(self._running)
            self._waiting.clear()
            self._changed.notify_all()
        for future in unfinished:
            with suppress(InvalidStateError):
                future.set_exception(EngineNotReadyError("the engine was stopped while a recording was being read"))
        ends = time.monotonic() + ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def health(self) -> dict[str, int]:
        """Tell how many recordings are in line and how many are being read."""
        return {"waiting": len(self._waiting), "running": len(self._running), "max_waiting": self.max_waiting}

    def _retry_after_s(self) -> float:
        return max(1.0, self._usual_s * len(self._waiting) / self._num_threads)

    def _forget(self, future: Future[Any]) -> None:
        with self._changed:
            for each in self._waiting:
                if each.future is future:
                    self._waiting.remove(each)
                    break
            self._changed.notify_all()

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            future, work = next_one
            started = time.monotonic()
            try:
                result = work(partial(_check, future))
            except BaseException as error:
                with suppress(InvalidStateError):  # it was cancelled, or ended by `close`
                    future.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    future.set_result(result)
                self._usual_s += 0.2 * (time.monotonic() - started - self._usual_s)
                del result
            with self._changed:
                self._running.discard(future)
                self._changed.notify_all()
            del future, work, next_one  # nothing of it is held while the next is waited for

    def _next(self) -> _Waiting | None:
        with self._changed:
            while not self._waiting:
                if self._is_closed:
                    return None
                self._changed.wait()
            taken = self._waiting.popleft()
            self._running.add(taken.future)
            return taken


def _check(future: Future[Any]) -> None:
    if future.done():
        raise CancelledError
