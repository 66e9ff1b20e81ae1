"""What is done for voices in the background: recordings become voices, and voices are read ahead of who asks for them.

One thread, one thing at a time. What fails is a warning and an entry in `failed`; the engine goes on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from s1_mini.exceptions import EngineNotReadyError, S1MiniError
from s1_mini.voices.registry import Recording

logger = logging.getLogger(__name__)

JOIN_S = 10.0  # a recording may still be decoded; the thread hinders no exit


class Preloader:
    """Works through recordings, then through wishes, until stopped."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        wishes: Sequence[str],
        *,
        wants_all: bool,
        take_in: Callable[[Recording], None],
        read_ahead: Callable[[str], bool],
        all_names: Callable[[], Sequence[str]],
        stopped: threading.Event,
    ) -> None:
        self.failed: dict[str, str] = {}
        self._recordings: deque[Recording] = deque(recordings)
        self._wishes: deque[str] = deque(wishes)
        self._first: deque[str] = deque()  # wishes that go before these, and are not given up with them
        self._take_in, self._read_ahead, self._all_names = take_in, read_ahead, all_names
        self._wants_all, self._stopped = wants_all, stopped
        self._is_busy = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="s1_mini voices", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def wish(self, name: str) -> None:
        """Have a voice read ahead, before those that were wished for at the start."""
        with self._changed:
            self._first.append(name)
            self._changed.notify()

    def wake(self) -> None:
        """Look whether it is time to stop."""
        with self._changed:
            self._changed.notify()

    def join(self) -> None:
        """Wait until it has stopped."""
        self._thread.join(JOIN_S)

    @property
    def num_left(self) -> int:
        """Recordings and voices that are still to be done."""
        with self._changed:
            voices = len(self._all_names()) if self._wants_all else 0
            return len(self._recordings) + len(self._first) + len(self._wishes) + voices + self._is_busy

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                self._do(task)
                self.failed.pop(_name(task), None)
            except EngineNotReadyError:
                return
            except (S1MiniError, OSError) as error:
                self._tell(task, str(error))
            except Exception as error:  # models raise errors of any class; the next voice is still loaded
                logger.exception("warming failed")
                self._tell(task, f"{type(error).__name__}: {error}")

    def _next(self) -> Recording | str | None:
        with self._changed:
            self._is_busy = False
            while not self._stopped.is_set():
                if self._wants_all and not self._recordings:
                    self._wants_all = False
                    self._wishes.extend(self._all_names())
                self._is_busy = True
                if self._first:
                    return self._first.popleft()
                if self._recordings:
                    return self._recordings.popleft()
                if self._wishes:
                    return self._wishes.popleft()
                self._is_busy = False
                self._changed.wait()
            return None

    def _do(self, task: Recording | str) -> None:
        if isinstance(task, Recording):
            self._take_in(task)
        elif not self._read_ahead(task) and not self._stopped.is_set():
            self._give_up(task)

    def _give_up(self, name: str) -> None:
        with self._changed:
            left = len(self._wishes)
            self._wishes.clear()
        logger.info("the cache of prefixes is full; %r and %d more voices are not read ahead", name, left)

    def _tell(self, task: Recording | str, reason: str) -> None:
        name = _name(task)
        logger.warning("the voice %r could not be made ready: %s", name, reason)
        self.failed[name] = reason


def _name(task: Recording | str) -> str:
    return task.name if isinstance(task, Recording) else task
