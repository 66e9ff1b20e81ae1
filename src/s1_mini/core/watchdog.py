"""Detects a thread that hangs, for example in a wait for a device that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

LOOK_S = 1.0  # poll interval; shorter for limits of a few seconds


class Heartbeat:
    """Marks a thread as busy: each `with` block is one piece of work."""

    def __init__(self) -> None:
        self._number = 0
        self._is_busy = False

    def __enter__(self) -> None:
        self._number += 1
        self._is_busy = True

    def __exit__(self, *_: object) -> None:
        self._is_busy = False

    @property
    def doing(self) -> int | None:
        """Number of the current piece of work, or None if idle."""
        return self._number if self._is_busy else None


class Watchdog:
    """Polls threads by name; calls `on_stuck` once if one does the same piece of work for `limit_s`.

    Time is counted in polls, so that a suspended machine counts as one poll.
    """

    def __init__(
        self, heartbeats: Mapping[str, Heartbeat], limit_s: float, on_stuck: Callable[[str, float], None]
    ) -> None:
        self._heartbeats, self._limit_s, self._on_stuck = heartbeats, limit_s, on_stuck
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="s1_mini watchdog", daemon=True)

    def start(self) -> None:
        """Start the watchdog thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the watchdog thread, if it was started."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = min(LOOK_S, self._limit_s / 4)
        seen: dict[str, int | None] = {}
        same_s = dict.fromkeys(self._heartbeats, 0.0)
        while not self._over.wait(pause):
            for name, heartbeat in self._heartbeats.items():
                now = heartbeat.doing
                same_s[name] = 0.0 if now is None or now != seen.get(name) else same_s[name] + pause
                seen[name] = now
                if same_s[name] >= self._limit_s:
                    self._on_stuck(name, same_s[name])
                    return
