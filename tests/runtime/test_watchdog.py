"""The watchdog reports a stuck thread, and never a working one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from s1_mini.runtime.engine_core import Watchdog


class Looks:
    """Replaces the watchdog's sleep: calls `between` before each of `count` checks, and returns at once."""

    def __init__(self, count: int, between: Callable[[], None]) -> None:
        self._left, self._between = count, between

    def wait(self, _: float) -> bool:
        self._left -= 1
        self._between()
        return self._left < 0


def worker(name: str, turn: int | None) -> Any:
    return SimpleNamespace(name=name, current_turn=turn)


def reported(workers: list[Any], limit_s: float, looks: Looks) -> list[tuple[str, float]]:
    """Return the watchdog's reports in some checks, each a quarter of the limit after the last."""
    calls: list[tuple[str, float]] = []
    watchdog = Watchdog(workers, limit_s, lambda name, seconds: calls.append((name, seconds)))
    watchdog._over = looks  # type: ignore[assignment]
    watchdog._run()
    return calls


def test_a_thread_with_one_turn_over_the_limit_is_reported_once() -> None:
    calls = reported([worker("good", None), worker("bad", 0)], 0.2, Looks(20, lambda: None))

    assert [name for name, _ in calls] == ["bad"]
    assert calls[0][1] >= 0.2


def test_a_thread_with_many_short_turns_or_none_is_not_reported() -> None:
    busy = worker("busy", 0)

    def work() -> None:
        busy.current_turn += 1

    assert reported([busy, worker("idle", None)], 0.3, Looks(20, work)) == []


def test_a_hanging_thread_is_reported_by_the_watchdogs_own_thread() -> None:
    is_reported = threading.Event()
    watchdog = Watchdog([worker("bad", 0)], 0.2, lambda *_: is_reported.set())
    watchdog.start()

    is_reported.wait()
    watchdog.stop()


def test_a_stopped_watchdog_ends() -> None:
    watch = Watchdog([], 0.1, lambda *_: None)
    before = set(threading.enumerate())
    watch.start()
    watch.stop()

    assert set(threading.enumerate()) <= before
