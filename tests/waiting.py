"""Polling for conditions that eventually hold, on machines of any speed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic  # by name: tests that advance `time.monotonic` do not shorten this wait
from typing import Any

import psutil

EVENTUALLY_S = 600.0  # not a performance requirement: it only keeps a failed test from hanging


def wait_until(
    condition: Callable[[], object],
    within_s: float = EVENTUALLY_S,
    *,
    every_s: float = 0.01,
    process: subprocess.Popen[Any] | None = None,
    log: Path | None = None,
) -> None:
    """Poll `condition` until it holds. Raises `AssertionError` after `within_s`, or once `process` has ended.

    The error ends with the last 4,000 characters of `log`.
    """

    def failure(reason: str) -> str:
        return f"{reason}\n{log.read_text(errors='replace')[-4000:]}" if log else reason

    deadline = monotonic() + within_s
    while not condition():
        assert process is None or process.poll() is None, failure("the process ended before")
        assert monotonic() < deadline, failure(f"not true after {within_s:g} s")
        time.sleep(every_s)


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process that is not a child has ended; until the first process reaps it, it is a zombie."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
