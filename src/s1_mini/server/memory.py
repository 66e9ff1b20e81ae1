"""Memory that large bodies leave behind: given back to the system at once, not kept for later."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

M_MMAP_THRESHOLD = -3  # as glibc's malloc.h names it
LARGE_BYTES = 4 * 2**20  # above what a step of a small model allocates, below bodies and recordings


def give_back_large_blocks() -> None:
    """Have glibc map large blocks by themselves, so that freeing one frees its memory; elsewhere do nothing.

    By default glibc raises this threshold, up to 32 MiB, with each large block that is freed; from then on such blocks
    lie among small ones, in an arena for every thread, and stay there.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
