"""Settings of a process that belongs to a busy engine: a server, a corpus worker, a measurement.

The owner of the process calls these functions; an engine inside another program's process does not.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
LARGE_BYTES = 4 * 2**20  # above what a step of a small model allocates, below bodies and recordings
SWITCH_S = 0.001  # switch interval of the interpreter; five times as long by default


def prepare_process() -> None:
    """Switch between threads more often, and return the memory of large bodies to the system.

    By default glibc raises its mmap threshold, up to 32 MiB, with each large block that is freed. Later blocks then lie
    among small ones, in an arena for every thread, and stay there. A fixed threshold makes freeing one return it.
    """
    sys.setswitchinterval(SWITCH_S)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def freeze_what_is_loaded() -> None:
    """Exempt all objects from garbage collection, once, when everything is loaded.

    A full collection visits some 200,000 objects and stops all threads for 35 to 600 ms, so that streams run out of
    audio. Frozen objects are not visited.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def frozen() -> Iterator[None]:
    """Exempt loaded objects within a block, after which the engine may be collected."""
    freeze_what_is_loaded()
    try:
        yield
    finally:
        gc.unfreeze()
