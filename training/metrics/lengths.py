"""Does it stop where it should: lengths against the teacher's, for the same text. Arithmetic only."""

from __future__ import annotations

RUNAWAY = 1.5  # of the teacher's length, issue 3
TRUNCATED = 0.67


def length_ratio(seconds: float, teacher_s: float) -> float:
    """Length of a recording in units of the teacher's, both in seconds with their silences."""
    return seconds / teacher_s


def is_runaway(ratio: float, *, stopped: bool) -> bool:
    """Tell whether a recording is too long, or was ended by a limit (finish reason "length") and not by itself."""
    return ratio > RUNAWAY or not stopped


def is_truncated(ratio: float) -> bool:
    """Tell whether a recording ends too early."""
    return ratio < TRUNCATED
