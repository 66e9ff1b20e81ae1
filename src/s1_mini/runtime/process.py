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

M_MMAP_THRESHOLD = -3  # number of this option in glibc's malloc.h
LARGE_BYTES = 4 * 2**20  # more than a step of a small model allocates, but less than large bodies and recordings
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


@contextmanager
def frozen() -> Iterator[None]:
    """Exempt all existing objects from garbage collection in a block; after the block, they can be collected again."""
    freeze_what_is_loaded()
    try:
        yield
    finally:
        gc.unfreeze()
