"""A thread that does not come back is noticed; one that works is not."""

from __future__ import annotations

import threading
import time

from s1_mini.core.watchdog import Heartbeat, Watchdog


def test_a_thread_that_does_one_thing_for_too_long_is_told_of_once() -> None:
    told: list[tuple[str, float]] = []
    heartbeats = {"good": Heartbeat(), "bad": Heartbeat()}
    watch = Watchdog(heartbeats, 0.2, lambda name, seconds: told.append((name, seconds)))
    watch.start()

    with heartbeats["bad"]:
        time.sleep(1.0)
    watch.stop()

    assert [name for name, _ in told] == ["bad"]
    assert told[0][1] >= 0.2


def test_a_thread_that_does_many_things_or_nothing_is_left_alone() -> None:
    told: list[str] = []
    heartbeat, end = Heartbeat(), time.monotonic() + 1.0
    watch = Watchdog({"busy": heartbeat, "idle": Heartbeat()}, 0.3, lambda name, _: told.append(name))
    watch.start()

    while time.monotonic() < end:
        with heartbeat:
            time.sleep(0.01)
    watch.stop()

    assert told == []


def test_a_watch_that_was_stopped_ends() -> None:
    watch = Watchdog({}, 0.1, lambda *_: None)
    before = set(threading.enumerate())
    watch.start()
    watch.stop()

    assert set(threading.enumerate()) <= before
