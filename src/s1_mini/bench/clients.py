"""Simulated clients: threads that request speech from an engine and play it, and the figures of their requests.

Times are seconds since the planned start of the request. A client plays each chunk when the previous chunk ends or when
the chunk arrives, whichever is later.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from s1_mini.bench.workload import Ask, VoiceChoice
from s1_mini.types import ChunkProfile, FinishReason

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

LOUD = 0.01  # -40 dBFS: quieter samples count as silence
BUFFER_S = 0.1  # playback buffer of `underruns_100ms`


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one request. A failed request has a `failure`; the percentiles leave it out."""

    end_to_end_s: float
    first_byte_s: float = 0.0
    audible_s: float | None = None  # None if no sample is louder than -40 dBFS
    audio_s: float = 0.0
    underruns: int = 0
    underruns_buffered: int = 0
    late_s: float = 0.0  # from the planned start to the call
    failure: str | None = None
    is_cut: bool = False  # whether the speech reached `max_new_tokens` or the model's limit

    @property
    def real_time_factor(self) -> float:
        """End-to-end seconds per second of audio."""
        return self.end_to_end_s / self.audio_s


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


def percentiles(values: Iterable[float | None]) -> dict[str, float | None]:
    """Return p50, p95 and p99, linearly interpolated, of the values that are not None; None without any values."""
    known = [value for value in values if value is not None]
    return {f"p{percent}": float(np.percentile(known, percent)) if known else None for percent in (50, 95, 99)}


def play(chunks: Sequence[tuple[float, float]], buffer_s: float = 0.0) -> tuple[list[float], int]:
    """Return when each chunk (arrival, length) starts to play, and the number of underruns.

    Playback starts `buffer_s` after the first arrival, and resumes immediately after a gap.
    """
    starts: list[float] = []
    underruns, over = 0, 0.0
    for arrived_s, length_s in chunks:
        if not starts:
            over = arrived_s + buffer_s
        elif arrived_s > over:
            underruns += 1
        starts.append(max(over, arrived_s))
        over = starts[-1] + length_s
    return starts, underruns


class Listener:
    """Arrival and length of the chunks of one request; the samples are not kept."""

    def __init__(self) -> None:
        self._chunks: list[tuple[float, float]] = []
        self._loud: tuple[int, float] | None = None  # number of the first audible chunk, and its silent seconds

    def hear(self, arrived_s: float, wave: np.ndarray, sample_rate: int) -> None:
        """Record a chunk [samples]; empty chunks are ignored."""
        if not len(wave):
            return
        if self._loud is None:
            is_loud = np.abs(wave) > LOUD
            if is_loud.any():
                self._loud = (len(self._chunks), int(np.argmax(is_loud)) / sample_rate)
        self._chunks.append((arrived_s, len(wave) / sample_rate))

    def outcome(self, ended_s: float, *, late_s: float = 0.0, failure: str | None = None, is_cut: bool) -> Outcome:
        """Return the figures; a request without audio counts as failed."""
        if failure is not None or not self._chunks:
            return Outcome(ended_s, late_s=late_s, failure=failure or "no_sound")
        starts, underruns = play(self._chunks)
        return Outcome(
            end_to_end_s=ended_s,
            first_byte_s=self._chunks[0][0],
            audible_s=None if self._loud is None else starts[self._loud[0]] + self._loud[1],
            audio_s=sum(length_s for _, length_s in self._chunks),
            underruns=underruns,
            underruns_buffered=play(self._chunks, BUFFER_S)[1],
            late_s=late_s,
            is_cut=is_cut,
        )


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process (default: this one); 0 if the system does not report it.

    On systems without /proc, the result is the peak for this process, and 0 for any other.
    """
    if sys.platform == "win32":
        return 0
    else:  # noqa: RET505 - mypy reads each branch for its own system
        import resource

        try:
            pages = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if pid is None else 0
            return most if sys.platform == "darwin" else 1024 * most
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Load:
    """The outcomes of a workload with a fixed concurrency or a fixed rate, added by several threads."""

    name: str
    expected: int  # number of requests
    concurrency: int | None = None
    rate: float | None = None
    begun: float = field(default_factory=time.perf_counter)  # when the first request was planned
    seconds: float = 0.0  # from `begun` to the end of the last request
    outcomes: list[Outcome] = field(default_factory=list)
    early_bytes: int = field(default_factory=resident_bytes)  # when a tenth of the requests had ended
    late_bytes: int = 0  # when all had ended
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            self.seconds = time.perf_counter() - self.begun
            self.late_bytes = resident_bytes()
            if 10 * len(self.outcomes) < self.expected + 10:
                self.early_bytes = self.late_bytes

    @property
    def audio_s(self) -> float:
        """Seconds of audio of the requests that did not fail."""
        return sum(one.audio_s for one in self.outcomes)

    @property
    def audio_per_s(self) -> float:
        """Seconds of audio per second."""
        return self.audio_s / self.seconds

    @property
    def failures(self) -> dict[str, int]:
        return dict(Counter(one.failure for one in self.outcomes if one.failure is not None))

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())

    @property
    def figures(self) -> dict[str, dict[str, float | None]]:
        """Percentiles of every measure over the requests that did not fail."""
        well = [one for one in self.outcomes if one.failure is None]
        return {name: percentiles(map(measure, well)) for name, measure in MEASURES.items()}

    def first_p95_ratio(self, idle: Load) -> float | None:
        """Return the p95 of the time to first audio, relative to an idle engine."""
        here, there = self.figures["first_byte_ms"]["p95"], idle.figures["first_byte_ms"]["p95"]
        return None if here is None or there is None else here / there

    def data(self, idle: Load) -> dict[str, Any]:
        memory = {"at_tenth": self.early_bytes, "at_end": self.late_bytes, "growth": self.late_bytes - self.early_bytes}
        return {
            "name": self.name,
            "concurrency": self.concurrency,
            "rate": self.rate,
            "requests": len(self.outcomes),
            "failed": self.num_failed,
            "failures": self.failures,
            "cut": sum(one.is_cut for one in self.outcomes),
            "seconds": self.seconds,
            "audio_s": self.audio_s,
            "audio_per_s": self.audio_per_s,
            "underruns": sum(one.underruns for one in self.outcomes),
            "underruns_100ms": sum(one.underruns_buffered for one in self.outcomes),
            "first_p95_ratio": self.first_p95_ratio(idle),
            "memory_mb": {name: num_bytes / 1e6 for name, num_bytes in memory.items()},
            "figures": self.figures,
        }


class Clients:
    """Clients of one engine, all with the same chunk profile."""

    def __init__(self, engine: ProductionTTSEngine, voice: VoiceChoice, profile: ChunkProfile) -> None:
        self._engine, self._voice, self._profile = engine, voice, profile

    def warm_up(self, asks: Sequence[Ask]) -> None:
        """Send requests one after the other and discard the outcomes."""
        self.closed("", asks, concurrency=1)

    def closed(self, name: str, asks: Sequence[Ask], *, concurrency: int, limit_s: float = float("inf")) -> Load:
        """Keep `concurrency` requests in flight until all are sent; no request starts after `limit_s`."""
        load = Load(name, len(asks), concurrency=concurrency, begun=time.perf_counter())

        def send(ask: Ask) -> None:
            if time.perf_counter() < load.begun + limit_s:
                load.add(self.ask(ask))

        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(send, asks))
        return load

    def open(self, name: str, asks: Sequence[Ask], arrivals: Sequence[float], *, rate: float) -> Load:
        """Send requests at the planned `arrivals` [s], each in its own thread, even if earlier ones have not ended."""
        begun = time.perf_counter()
        load = Load(name, len(asks), rate=rate, begun=begun + arrivals[0])
        with ThreadPoolExecutor(len(asks)) as pool:
            sent = []
            for ask, arrival in zip(asks, arrivals, strict=True):
                voice, planned = self._voice(ask.number), begun + arrival
                time.sleep(max(0.0, planned - time.perf_counter()))
                sent.append(pool.submit(lambda *request: load.add(self.ask(*request)), ask, planned, voice))
            for request in sent:
                request.result()
        return load

    def ask(self, ask: Ask, planned: float | None = None, voice: dict[str, Any] | None = None) -> Outcome:
        """Send a request and play it to the end; times count from `planned` (a `perf_counter()`) or from the call."""
        listener, failure = Listener(), None
        reason: FinishReason | None = None
        options = {**(self._voice(ask.number) if voice is None else voice)}
        options |= {"seed": ask.seed, "max_new_tokens": ask.max_new_tokens, "chunk_profile": self._profile}
        planned = time.perf_counter() if planned is None else planned
        late_s = time.perf_counter() - planned
        try:
            for chunk in self._engine.stream(ask.text, **options):
                listener.hear(time.perf_counter() - planned, chunk.audio, chunk.sample_rate)
                reason = chunk.finish_reason
        except Exception as error:  # a load test counts each failure by name and continues
            failure = str(getattr(error, "code", type(error).__name__))
        ended_s = time.perf_counter() - planned
        return listener.outcome(ended_s, late_s=late_s, failure=failure, is_cut=reason == "length")
