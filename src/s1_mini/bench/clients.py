"""Clients of one process: threads that request speech from an engine and play it, and the figures of their requests.

Times are seconds since the request was planned. A client plays each chunk when the chunk before it is over, or when it
arrives, whichever is later.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from s1_mini.bench.workload import Ask, VoiceChoice
from s1_mini.engine import ProductionTTSEngine
from s1_mini.types import ChunkProfile, FinishReason

LOUD = 0.01  # -40 dBFS: quieter samples count as silence
BUFFER_S = 0.1  # playback buffer of `underruns_100ms`
PERCENTS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one request. A failed request has a `failure` and counts in no other figure."""

    end_to_end_s: float
    first_byte_s: float = 0.0
    audible_s: float | None = None  # None if no sample is louder than -40 dBFS
    audio_s: float = 0.0
    underruns: int = 0
    underruns_buffered: int = 0
    late_s: float = 0.0  # between plan and call
    failure: str | None = None
    is_cut: bool = False  # it reached `max_new_tokens`

    @property
    def real_time_factor(self) -> float:
        """End-to-end seconds per second of audio."""
        return self.end_to_end_s / self.audio_s


def play(chunks: Sequence[tuple[float, float]], buffer_s: float = 0.0) -> tuple[list[float], int]:
    """Return when each chunk (arrival, length) starts to play, and the number of underruns.

    Playback starts `buffer_s` after the first arrival, and at once after a gap.
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
        self._loud: tuple[int, float] | None = None  # the chunk of the first audible sample, and its offset in it

    def hear(self, arrived_s: float, wave: np.ndarray, sample_rate: int) -> None:
        """Take a chunk [samples]; an empty one is ignored."""
        if not len(wave):
            return
        if self._loud is None:
            is_loud = np.abs(wave) > LOUD
            if is_loud.any():
                self._loud = (len(self._chunks), int(np.argmax(is_loud)) / sample_rate)
        self._chunks.append((arrived_s, len(wave) / sample_rate))

    def outcome(self, ended_s: float, *, late_s: float = 0.0, failure: str | None = None, is_cut: bool) -> Outcome:
        """Compute the figures; a request without sound has failed, too."""
        if failure is None and not self._chunks:
            failure = "no_sound"
        if failure is not None:
            return Outcome(ended_s, late_s=late_s, failure=failure)
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
    """Return p50, p95 and p99 of the values that are not None, linear between neighbours; None if there are none."""
    known = [value for value in values if value is not None]
    return {f"p{percent}": float(np.percentile(known, percent)) if known else None for percent in PERCENTS}


@dataclass(frozen=True)
class Load:
    """The result of a workload with a fixed concurrency or a fixed rate."""

    name: str
    concurrency: int | None
    rate: float | None
    seconds: float  # from the first plan to the last end
    outcomes: tuple[Outcome, ...]
    early_bytes: int  # resident when a tenth of the requests had ended
    late_bytes: int  # … and when all had

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
        """Number of failed requests by error code."""
        return dict(Counter(one.failure for one in self.outcomes if one.failure is not None))

    @property
    def num_failed(self) -> int:
        """Number of failed requests."""
        return sum(self.failures.values())

    @cached_property
    def figures(self) -> dict[str, dict[str, float | None]]:
        """Percentiles of every measure over the requests that did not fail."""
        well = [one for one in self.outcomes if one.failure is None]
        return {name: percentiles(map(measure, well)) for name, measure in MEASURES.items()}

    @property
    def growth_mb(self) -> float:
        """Growth of this process's memory after the first tenth of the requests."""
        return (self.late_bytes - self.early_bytes) / 1e6


class Tally:
    """Collects the outcomes of one load from several threads."""

    def __init__(self, expected: int) -> None:
        self._outcomes: list[Outcome] = []
        self._early_bytes = resident_bytes()
        self._tenth = -(-expected // 10)
        self._lock = threading.Lock()
        self._begun = time.perf_counter()

    def add(self, outcome: Outcome) -> None:
        """Count one request that has ended."""
        with self._lock:
            self._outcomes.append(outcome)
            if len(self._outcomes) == self._tenth:
                self._early_bytes = resident_bytes()

    def load(
        self, name: str, *, concurrency: int | None = None, rate: float | None = None, begun: float | None = None
    ) -> Load:
        """Return the finished load; `begun` is when the first request was planned, if not at the start."""
        seconds = time.perf_counter() - (self._begun if begun is None else begun)
        return Load(name, concurrency, rate, seconds, tuple(self._outcomes), self._early_bytes, resident_bytes())


class Clients:
    """Clients of one engine, all with the same chunk profile."""

    def __init__(self, engine: ProductionTTSEngine, voice: VoiceChoice, profile: ChunkProfile) -> None:
        self._engine, self._voice, self._profile = engine, voice, profile

    def warm_up(self, asks: Sequence[Ask]) -> None:
        """Send requests one after the other and discard the outcomes."""
        self.closed("", asks, concurrency=1)

    def closed(self, name: str, asks: Sequence[Ask], *, concurrency: int, limit_s: float = float("inf")) -> Load:
        """Keep `concurrency` requests in flight until all are sent; no request starts after `limit_s`."""
        waiting = queue.SimpleQueue[Ask]()
        for ask in asks:
            waiting.put(ask)
        tally, limit = Tally(len(asks)), time.perf_counter() + limit_s

        def work() -> None:
            while time.perf_counter() < limit:
                try:
                    ask = waiting.get_nowait()
                except queue.Empty:
                    return
                tally.add(self.ask(ask))

        run_together(work for _ in range(concurrency))
        return tally.load(name, concurrency=concurrency)

    def open(self, name: str, asks: Sequence[Ask], arrivals: Sequence[float], *, rate: float) -> Load:
        """Send requests at the planned `arrivals` [s], each in a thread of its own, whether or not others ended."""
        tally, begun = Tally(len(asks)), time.perf_counter()

        def requests() -> Iterator[Callable[[], None]]:
            for ask, arrival in zip(asks, arrivals, strict=True):
                voice, planned = self._voice(ask.number), begun + arrival
                time.sleep(max(0.0, planned - time.perf_counter()))
                yield partial(listen, ask, planned, voice)

        def listen(ask: Ask, planned: float, voice: dict[str, Any]) -> None:
            tally.add(self.ask(ask, planned, voice))

        run_together(requests())
        return tally.load(name, rate=rate, begun=begun + arrivals[0])

    def ask(self, ask: Ask, planned: float | None = None, voice: dict[str, Any] | None = None) -> Outcome:
        """Send a request and play it to the end; times count from `planned`, a `perf_counter()`, or from the call."""
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
        except Exception as error:  # a load test counts every failure by its name and goes on
            failure = str(getattr(error, "code", type(error).__name__))
        ended_s = time.perf_counter() - planned
        return listener.outcome(ended_s, late_s=late_s, failure=failure, is_cut=reason == "length")


def run_together(works: Iterable[Callable[[], None]]) -> None:
    """Run each work in a thread of its own, started as it is yielded; wait until all have ended."""
    threads = []
    for work in works:
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process (default: this one), or 0 where the system does not report it.

    Without /proc it is the peak of this process.
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
