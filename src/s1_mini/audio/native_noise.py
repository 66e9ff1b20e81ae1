"""Keep the messages of C libraries out of a server's log: libmpg123 writes a message for every broken frame to stderr.

Off by default, because redirecting stderr also discards what other threads write to it at that moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2

_lock = threading.Lock()
_real: int | None = None  # a descriptor of the real stderr, once `keep_out` was called
_nowhere = -1
_num_inside = 0


def keep_out() -> int:
    """Enable `kept_out`; return a file descriptor of the real stderr, for the program's own log."""
    global _real, _nowhere
    if _real is None:
        _real, _nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    return os.dup(_real)


@contextmanager
def kept_out() -> Iterator[None]:
    """Discard everything that any thread writes to stderr within the block, if `keep_out` was called."""
    if _real is None:
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    """Count the blocks in progress; the first redirects stderr, the last restores it."""
    global _num_inside  # noqa: PLW0603
    assert _real is not None
    with _lock:
        _num_inside += change
        os.dup2(_nowhere if _num_inside else _real, STDERR)
