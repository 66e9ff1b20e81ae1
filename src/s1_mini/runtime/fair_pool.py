"""A few threads that prepare requests: they read texts and encode recordings, which takes up to seconds.

When the queue is full, further work is refused. Clients take turns, and one client holds at most its `client_share` of
the queue. Work of the same subject, such as one recording of several requests, takes one place and one thread; what
waits finds the result of the first in a cache. Cancelled work leaves the queue at once and frees its memory; work in
progress looks at its `Check` and ends soon.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from s1_mini.core.turns import Turns, client_share
from s1_mini.exceptions import EngineNotReadyError, QueueFullError, S1MiniError
from s1_mini.runtime.tasks import Durations
from s1_mini.voices.reference import Check

Result = TypeVar("Result")

MAX_THREADS = 4
USUAL_S = 1.0  # assumed time of a piece of work, until one has been measured
ENDING_S = 1.0  # how long `close` waits for cancelled work


class _Waiting(NamedTuple):
    future: Future[Any]
    work: Callable[[Check], Any]
    client: str
    subject: Hashable


class FairPool:
    """Runs work in a few threads, which are started when needed. Clients take turns; a client's work runs in order."""

    def __init__(self, *, max_waiting: int, threads: int | None = None, what: str) -> None:
        """`what` names the work in errors."""
        self.max_waiting, self._what = max_waiting, what
        self._num_threads = threads or max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
        self._waiting: deque[_Waiting] = deque()
        self._turns: Turns[str] = Turns()
        self._running: dict[Future[Any], Hashable] = {}  # with their subjects
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._durations = Durations(USUAL_S)

    def submit(self, work: Callable[[Check], Result], client: str = "", *, subject: Hashable = None) -> Future[Result]:
        """Queue `work`, and return its future; cancelling the future ends the work at any time.

        A client with an empty name may fill the whole queue. None is a subject of its own. Raises `QueueFullError`, or
        `EngineNotReadyError` after `close`.
        """
        future: Future[Result] = Future()
        subject = future if subject is None else subject
        with self._changed:
            if self._is_closed:
                raise EngineNotReadyError("the engine is shutting down and no longer accepts requests")
            running = set(self._running.values())  # what waits for it takes no place
            subjects = {each.subject for each in self._waiting} - running
            num_own = len({each.subject for each in self._waiting if each.client == client} - running)
            num, is_new = len(subjects), subject not in subjects | running
            allowed = max(1.0, client_share(self.max_waiting, num, num_own))
            if is_new and (num >= self.max_waiting or (client and num_own + 1 > allowed)):
                retry_after_s = self._durations.retry_after_s(num, self._num_threads)
                raise QueueFullError(num, self.max_waiting, retry_after_s, self._what)
            self._waiting.append(_Waiting(future, work, client, subject))
            if client not in self._turns:
                self._turns.join(client)
            if len(self._threads) < self._num_threads:
                self._threads.append(threading.Thread(target=self._run, name=f"s1_mini {self._what}", daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        future.add_done_callback(self._forget)
        return future

    def close(self, *, drains: bool, timeout_s: float | None = None) -> None:
        """Accept no more work; if `drains`, finish accepted work within `timeout_s`. Other work ends with an error."""
        with self._changed:
            self._is_closed = True
            if drains:
                self._changed.wait_for(lambda: not self._waiting and not self._running, timeout_s)
            unfinished = [each.future for each in self._waiting] + list(self._running)
            self._waiting.clear()
            self._turns = Turns()
            self._changed.notify_all()
        for future in unfinished:
            with suppress(InvalidStateError):
                future.set_exception(EngineNotReadyError(f"the engine was stopped while it was preparing {self._what}"))
        ends = time.monotonic() + ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def health(self) -> dict[str, int]:
        return {"waiting": len(self._waiting), "running": len(self._running), "max_waiting": self.max_waiting}

    def _forget(self, future: Future[Any]) -> None:
        with self._changed:
            for each in self._waiting:
                if each.future is future:
                    self._remove(each)
                    break
            self._changed.notify_all()

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            future, work = next_one.future, next_one.work
            started = time.monotonic()
            try:
                result = work(Check(future))
            except BaseException as error:  # the caller receives any error
                _forget_frames(error)
                with suppress(InvalidStateError):  # the future was cancelled, or ended by `close`
                    future.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    future.set_result(result)
                self._durations.add(time.monotonic() - started)
                del result
            with self._changed:
                del self._running[future]
                self._changed.notify_all()
            del future, work, next_one  # release their memory while waiting for the next work

    def _next(self) -> _Waiting | None:
        with self._changed:
            while not (ready := [each for each in self._waiting if each.subject not in self._running.values()]):
                if self._is_closed:
                    return None
                self._changed.wait()
            taken = min(ready, key=lambda each: self._turns.next(each.client))  # of equal turns, the first
            self._turns.charge(taken.client)
            self._remove(taken)
            self._running[taken.future] = taken.subject
            return taken

    def _remove(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        if not any(each.client == waiting.client for each in self._waiting):
            self._turns.leave(waiting.client)


def _forget_frames(error: BaseException) -> None:
    """Drop what an error refers to: the frames of the work, which refer to its future, which refers to the error.

    The traceback of an unexpected error is kept, for the log; its frames are emptied.
    """
    if isinstance(error, S1MiniError):
        error.__traceback__ = error.__context__ = error.__cause__ = None
    else:
        traceback.clear_frames(error.__traceback__)
