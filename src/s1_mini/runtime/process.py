"""Settings for a process that is dedicated to an engine: a server, a corpus worker, a measurement.

Programs that only run an engine call these functions. An engine that is embedded in another program does not, because
the functions affect the whole process.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from s1_mini.exceptions import EngineNotReadyError

_owner: int | None = None  # id of the process that has started an engine


def claim_process() -> None:
    """Note that this process starts an engine. Raises the error of `refuse_fork`."""
    global _owner  # noqa: PLW0603 - a property of the process
    refuse_fork()
    _owner = os.getpid()


def refuse_fork() -> None:
    """Raise `EngineNotReadyError` in a forked child of a process that has started an engine.

    A fork copies locks, but not the threads that would release them and do the work, so that a call would never return.
    """
    if _owner not in (None, os.getpid()):
        raise EngineNotReadyError(
            "this process is a fork of one that has started an engine, and a fork cannot use an engine, because it has "
            "none of its threads; start the process with spawn instead, for example with "
            'multiprocessing.get_context("spawn"), and create the engine there'
        )


M_MMAP_THRESHOLD = -3  # number of this option in glibc's malloc.h
LARGE_BYTES = 4 * 2**20  # more than a step of a small model allocates, but less than large bodies and recordings
NEVER = 2**31 - 1  # as a threshold: more collections than a process ever makes
IDLE_S = 1.0  # time without requests before a full collection
SWITCH_S = 0.001  # thread switch interval of the interpreter; the default is 0.005


def prepare_process() -> None:
    """Switch between threads more often, and return the memory of large request bodies to the system.

    By default, glibc raises its mmap threshold, up to 32 MiB, when a large block is freed. Later blocks of that size
    are then allocated among small blocks, in a thread's arena, and freeing them does not return their memory to the
    system. With a fixed threshold, freeing large blocks returns it.
    """
    sys.setswitchinterval(SWITCH_S)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def freeze_what_is_loaded() -> None:
    """Exempt all existing objects from garbage collection. Call this once, after loading.

    A full collection visits about 200,000 objects and stops all threads for 35 to 600 ms, so that streams run out of
    audio. Frozen objects are not visited.
    """
    gc.collect()
    gc.freeze()


class IdleCollector:
    """Full garbage collections of a process that runs an engine: none while it works, one each time it becomes idle.

    Requests leave no reference cycles behind, so memory does not grow while no full collection runs. Collections of
    young objects, which take less than a millisecond, stay automatic.
    """

    def __init__(self) -> None:
        self._is_due = False
        self._busy_at = 0.0  # when the engine was last seen busy

    def start(self) -> None:
        """Exempt the loaded objects from collections, and turn automatic full collections off."""
        freeze_what_is_loaded()
        gc.set_threshold(*gc.get_threshold()[:2], NEVER)

    def look(self, *, is_idle: bool, now: float) -> None:
        """Collect if the engine has been idle for `IDLE_S`. To be called at least that often."""
        if not is_idle:
            self._is_due, self._busy_at = True, now
        elif self._is_due and now - self._busy_at >= IDLE_S:
            self._is_due = False
            freeze_what_is_loaded()  # the objects that stay are not visited again


@contextmanager
def frozen() -> Iterator[None]:
    """Exempt all existing objects from garbage collection in a block; after the block, they can be collected again."""
    freeze_what_is_loaded()
    try:
        yield
    finally:
        gc.unfreeze()
