"""Clients of one process: threads that ask through the engine's own front door and listen as clients do."""

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

from s1_mini.bench.figures import Listener, Outcome, summarize
from s1_mini.bench.voices import VoiceChoice
from s1_mini.bench.workload import Ask
from s1_mini.engine import ProductionTTSEngine
from s1_mini.types import ChunkProfile, FinishReason


@dataclass(frozen=True)
class Load:
    """What came of a workload: so many at a time, or so many a second."""

    name: str
    concurrency: int | None
    rate: float | None
    seconds: float  # from the first plan to the last end
    outcomes: tuple[Outcome, ...]
    early_bytes: int  # resident when a tenth of the requests had ended
    late_bytes: int  # … and when all had

    @property
    def audio_s(self) -> float:
        """Seconds of sound of the requests that did not fail."""
        return sum(one.audio_s for one in self.outcomes)

    @property
    def audio_per_s(self) -> float:
        """Seconds of sound per second of work."""
        return self.audio_s / self.seconds

    @property
    def failures(self) -> dict[str, int]:
        """How many requests failed, by the code of their error."""
        return dict(Counter(one.failure for one in self.outcomes if one.failure is not None))

    @property
    def num_failed(self) -> int:
        """How many requests failed."""
        return sum(one.failure is not None for one in self.outcomes)

    @cached_property
    def figures(self) -> dict[str, dict[str, float | None]]:
        """Percentiles of every measure."""
        return summarize(self.outcomes)

    @property
    def growth_mb(self) -> float:
        """Memory that this process came to hold after the first tenth of the requests."""
        return (self.late_bytes - self.early_bytes) / 1e6


class Tally:
    """Outcomes of one load as they come in, from several threads."""

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
        """Sum up, now that all have ended; `begun` is when the first request was planned, if not at the start."""
        seconds = time.perf_counter() - (self._begun if begun is None else begun)
        return Load(name, concurrency, rate, seconds, tuple(self._outcomes), self._early_bytes, resident_bytes())


class Clients:
    """Those who ask one engine for a workload, all with the same profile."""

    def __init__(self, engine: ProductionTTSEngine, voice: VoiceChoice, profile: ChunkProfile) -> None:
        self._engine, self._voice, self._profile = engine, voice, profile

    def warm_up(self, asks: Sequence[Ask]) -> None:
        """Ask one after the other and forget how it went."""
        self.closed("", asks, concurrency=1)

    def closed(self, name: str, asks: Sequence[Ask], *, concurrency: int, limit_s: float = float("inf")) -> Load:
        """Keep `concurrency` requests under way: each client asks when its last request has ended.

        After `limit_s` nobody asks any more.
        """
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
        """Ask at the planned `arrivals` [s], whatever has become of those before; each request has its own thread."""
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
        """Ask, and listen to the end; times count from `planned`, a `time.perf_counter()`, or from the call."""
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
        except Exception as error:  # whatever it was, it is counted by its name
            failure = str(getattr(error, "code", type(error).__name__))
        ended_s = time.perf_counter() - planned
        return listener.outcome(ended_s, late_s=late_s, failure=failure, is_cut=reason == "length")


def run_together(works: Iterable[Callable[[], None]]) -> None:
    """Do each work in a thread of its own, begun as it is given; wait until all have ended."""
    threads = []
    for work in works:
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


def resident_bytes(pid: int | None = None) -> int:
    """Memory that a process holds, this one if none is named; 0 where the system does not tell.

    Where it tells of this process only the most that it ever held, that.
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
