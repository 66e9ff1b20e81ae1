"""Recordings being decoded and encoded, which takes seconds: a few at once, some more queued, further ones refused.

Clients take turns, and one client holds at most its `client_share` of the places. Requests without a recording never
wait here. Cancelled work leaves the queue at once, with what it holds, and ends soon if it has begun, by its `Check`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from s1_mini.core.turns import Turns, client_share
from s1_mini.exceptions import EngineNotReadyError, QueueFullError
from s1_mini.voices.reference import Check

Result = TypeVar("Result")

MAX_THREADS = 4
USUAL_S = 1.0  # that a recording takes, before one has been seen
ENDING_S = 1.0  # given at a stop to work that has begun and is unwanted now


class _Waiting(NamedTuple):
    future: Future[Any]
    work: Callable[[Check], Any]
    client: str


class Recordings:
    """Runs work in a few threads, which start with the first of it: in order of arrival, clients taking turns."""

    def __init__(self, *, max_waiting: int, threads: int | None = None) -> None:
        self.max_waiting = max_waiting
        self._num_threads = threads or max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
        self._waiting: deque[_Waiting] = deque()
        self._turns: Turns[str] = Turns()
        self._running: set[Future[Any]] = set()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._usual_s = USUAL_S

    def submit(self, work: Callable[[Check], Result], client: str = "") -> Future[Result]:
        """Queue `work`; cancelling the future, at any time, ends it. An unnamed client may fill the queue.

        Raises `QueueFullError`, or `EngineNotReadyError` once closed.
        """
        future: Future[Result] = Future()
        with self._changed:
            if self._is_closed:
                raise EngineNotReadyError("the engine is stopping and takes in nothing more")
            num_own = sum(each.client == client for each in self._waiting)
            allowed = max(1.0, client_share(self.max_waiting, len(self._waiting), num_own))
            if len(self._waiting) >= self.max_waiting or (client and num_own + 1 > allowed):
                raise QueueFullError(len(self._waiting), self.max_waiting, self._retry_after_s(), "recordings")
            self._waiting.append(_Waiting(future, work, client))
            if client not in self._turns:
                self._turns.join(client)
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
            self._turns = Turns()
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
                    self._remove(each)
                    break
            self._changed.notify_all()

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            future, work, _ = next_one
            started = time.monotonic()
            try:
                result = work(Check(future))
            except BaseException as error:  # the caller gets any error
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
            taken = min(self._waiting, key=lambda each: self._turns.next(each.client))  # the first of those
            self._turns.charge(taken.client)
            self._remove(taken)
            self._running.add(taken.future)
            return taken

    def _remove(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        if not any(each.client == waiting.client for each in self._waiting):
            self._turns.leave(waiting.client)
