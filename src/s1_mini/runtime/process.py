"""What a process does whose engine has much to do: a server, a worker of a corpus, a measurement.

Whoever owns the process calls these; an engine that others use in theirs does not.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

M_MMAP_THRESHOLD = -3  # as glibc's malloc.h names it
LARGE_BYTES = 4 * 2**20  # above what a step of a small model allocates, below bodies and recordings
SWITCH_S = 0.001  # after which a thread that computes lets another have the interpreter; five times as long by default


def prepare_process() -> None:
    """Switch between threads more often, and return the memory of large bodies to the system."""
    sys.setswitchinterval(SWITCH_S)
    _give_back_large_blocks()


def _give_back_large_blocks() -> None:
    """Make glibc map large blocks separately, so that freeing one returns its memory; do nothing elsewhere.

    By default glibc raises this threshold, up to 32 MiB, with each large block that is freed; from then on such blocks
    lie among small ones, in an arena for every thread, and stay there.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def num_cores() -> int:
    """Return the number of cores that this process may use, as far as the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def freeze_what_is_loaded() -> None:
    """Exempt all objects from garbage collection, once, when everything is loaded.

    A full collection looks at each of them, some 200,000, and stops all threads meanwhile, for 100 to 600 ms: long
    enough for every stream to run dry. Later ones see only what came since.
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
