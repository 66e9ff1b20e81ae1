"""What a listener got out of a request, and what became of many: no engine and no clock, only times and samples.

Times are seconds since the request was planned. A listener plays each sound when the one before it is over, or when
it has come, whichever is later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LOUD = 0.01  # -40 dBFS: what lies below is heard as silence
BUFFER_S = 0.1  # of a listener who does not play at once
PERCENTS = (50, 95, 99)


@dataclass(frozen=True)
class Chunk:
    """One piece of sound as it reached the listener."""

    arrived_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. One that failed has a `failure` and counts in no other figure."""

    end_to_end_s: float
    first_byte_s: float = 0.0
    audible_s: float | None = None  # None if nothing in it is louder than -40 dBFS
    audio_s: float = 0.0
    underruns: int = 0
    underruns_buffered: int = 0
    late_s: float = 0.0  # between plan and call
    failure: str | None = None
    is_cut: bool = False  # it reached the most frames it may have

    @property
    def real_time_factor(self) -> float:
        """Seconds of waiting and listening a second of sound."""
        return self.end_to_end_s / self.audio_s


def play(chunks: Sequence[Chunk], buffer_s: float = 0.0) -> tuple[list[float], int]:
    """Tell when each chunk begins to sound, and how many came after all before them had been heard.

    The listener begins `buffer_s` after the first chunk has come, and after each gap at once.
    """
    starts: list[float] = []
    underruns, over = 0, 0.0
    for chunk in chunks:
        if not starts:
            over = chunk.arrived_s + buffer_s
        elif chunk.arrived_s > over:
            underruns += 1
        starts.append(max(over, chunk.arrived_s))
        over = starts[-1] + chunk.length_s
    return starts, underruns


class Listener:
    """Hears one request; keeps when and how long its chunks were, not what was in them."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._loud: tuple[int, float] | None = None  # the chunk of the first audible sample, and how far into it

    def hear(self, arrived_s: float, wave: np.ndarray, sample_rate: int) -> None:
        """Take a chunk [samples]; an empty one is no sound."""
        if not len(wave):
            return
        if self._loud is None:
            is_loud = np.abs(wave) > LOUD
            if is_loud.any():
                self._loud = (len(self._chunks), int(np.argmax(is_loud)) / sample_rate)
        self._chunks.append(Chunk(arrived_s, len(wave) / sample_rate))

    def outcome(self, ended_s: float, *, late_s: float = 0.0, failure: str | None = None, is_cut: bool) -> Outcome:
        """Sum up; a request that ended well and gave no sound has failed, too."""
        if failure is None and not self._chunks:
            failure = "no_sound"
        if failure is not None:
            return Outcome(ended_s, late_s=late_s, failure=failure)
        starts, underruns = play(self._chunks)
        return Outcome(
            end_to_end_s=ended_s,
            first_byte_s=self._chunks[0].arrived_s,
            audible_s=None if self._loud is None else starts[self._loud[0]] + self._loud[1],
            audio_s=sum(chunk.length_s for chunk in self._chunks),
            underruns=underruns,
            underruns_buffered=play(self._chunks, BUFFER_S)[1],
            late_s=late_s,
            is_cut=is_cut,
        )


MEASURES: dict[str, Callable[[Outcome], float | None]] = {
    "first_byte_ms": lambda one: 1000 * one.first_byte_s,
    "audible_ms": lambda one: None if one.audible_s is None else 1000 * one.audible_s,
    "end_to_end_ms": lambda one: 1000 * one.end_to_end_s,
    "real_time_factor": lambda one: one.real_time_factor,
    "audio_per_s": lambda one: 1 / one.real_time_factor,
    "underruns": lambda one: one.underruns,
    "underruns_100ms": lambda one: one.underruns_buffered,
    "late_ms": lambda one: 1000 * one.late_s,
}


def summarize(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float | None]]:
    """Give p50, p95 and p99 of every measure over the requests that did not fail."""
    well = [one for one in outcomes if one.failure is None]
    return {name: percentiles([measure(one) for one in well]) for name, measure in MEASURES.items()}


def percentiles(values: Sequence[float | None]) -> dict[str, float | None]:
    """Give p50, p95 and p99, linear between neighbours; None where there is no value. Absent values do not count."""
    known = [value for value in values if value is not None]
    return {f"p{percent}": float(np.percentile(known, percent)) if known else None for percent in PERCENTS}
