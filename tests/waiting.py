"""Wait for something that happens eventually, however slow or busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import monotonic  # by name: tests that move `time.monotonic` forward do not shorten this wait

EVENTUALLY_S = 120.0  # no promise of speed: it only keeps a failed test from hanging


def wait_until(condition: Callable[[], object], within_s: float = EVENTUALLY_S) -> None:
    """Poll `condition` until it holds. Raises `AssertionError` after `within_s`."""
    deadline = monotonic() + within_s
    while not condition():
        assert monotonic() < deadline, f"not true after {within_s:g} s"
        time.sleep(0.01)
