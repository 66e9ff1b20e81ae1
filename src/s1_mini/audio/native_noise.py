"""What C libraries write to stderr by themselves, kept out of a server's log: libmpg123 comments on every broken frame.

Off unless a program turns it on, since it may silence whoever else writes to the process's stderr at that moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2

_lock = threading.Lock()
_is_on = False
_num_inside = 0
_saved = -1  # the real stderr, while somebody is inside


def keep_out() -> int:
    """Turn it on; give a file descriptor of the real stderr, for the program's own log."""
    global _is_on  # noqa: PLW0603 - stderr is the process's, too
    _is_on = True
    return os.dup(STDERR)


@contextmanager
def kept_out() -> Iterator[None]:
    """Send to nowhere what is written to stderr until the block ends, in whatever thread."""
    is_inside = _is_on and _enter()
    try:
        yield
    finally:
        if is_inside:
            _leave()


def _enter() -> bool:
    """Tell whether it could be done; a process that has no file left must do with the noise."""
    global _num_inside, _saved  # noqa: PLW0603
    with _lock:
        if _num_inside == 0:
            try:
                nowhere = os.open(os.devnull, os.O_WRONLY)
            except OSError:
                return False
            try:
                _saved = os.dup(STDERR)
                os.dup2(nowhere, STDERR)
            except OSError:
                return False
            finally:
                os.close(nowhere)
        _num_inside += 1
        return True


def _leave() -> None:
    global _num_inside  # noqa: PLW0603
    with _lock:
        _num_inside -= 1
        if _num_inside == 0:
            os.dup2(_saved, STDERR)
            os.close(_saved)
