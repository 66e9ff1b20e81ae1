"""Copies of arrays that keep the GIL.

numpy, for more than 500 numbers, and torch release the GIL while they copy. Taking it back from a busy thread takes up
to `runtime.process.SWITCH_S`, much longer than a copy of a few hundred kilobytes.
"""

from __future__ import annotations

import numpy as np


def copy_bytes(target: np.ndarray, source: np.ndarray) -> None:
    """Copy a contiguous array to another one of the same size in bytes."""
    if source.nbytes:  # `cast` refuses empty arrays
        target.data.cast("B")[:] = source.data.cast("B")


def copied(array: np.ndarray) -> np.ndarray:
    """Return a copy of a contiguous array."""
    copy = np.empty_like(array)
    copy_bytes(copy, array)
    return copy
