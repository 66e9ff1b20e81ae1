"""Clients of one process: threads that ask through the engine's own front door and listen as clients do."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from s1_mini.bench.figures import BUFFER_S, Listener, Outcome, summarize
from s1_mini.bench.meter import resident_bytes
from s1_mini.bench.voicing import Voicing
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

    @cached_property
    def figures(self) -> dict[str, dict[str, float | None]]:
        """Percentiles of every measure."""
        return summarize(self.outcomes)

    @property
    def growth_mb(self) -> float:
        """Memory that this process came to hold after the first tenth of the requests."""
        return (self.late_bytes - self.early_bytes) / 1e6


class _Tally:
    """Outcomes as they come in, from several threads."""

    def __init__(self, expected: int) -> None:
        self.outcomes: list[Outcome] = []
        self.early_bytes = resident_bytes()
        self._tenth = -(-expected // 10)
        self._lock = threading.Lock()

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            if len(self.outcomes) == self._tenth:
                self.early_bytes = resident_bytes()


class Clients:
    """Those who ask one engine for a workload, all with the same profile."""

    def __init__(self, engine: ProductionTTSEngine, voicing: Voicing, profile: ChunkProfile) -> None:
        self._engine, self._voicing, self._profile = engine, voicing, profile

    def warm_up(self, asks: Sequence[Ask]) -> None:
        """Ask one after the other and forget how it went."""
        self.closed("", asks, concurrency=1)

    def closed(self, name: str, asks: Sequence[Ask], *, concurrency: int, limit_s: float = float("inf")) -> Load:
        """Keep `concurrency` requests under way: each client asks when its last request has ended.

        After `limit_s` nobody asks any more.
        """
        tally, waiting = _Tally(len(asks)), queue.SimpleQueue[Ask]()
        for ask in asks:
            waiting.put(ask)

        def work() -> None:
            while time.perf_counter() < limit:
                try:
                    ask = waiting.get_nowait()
                except queue.Empty:
                    return
                voice = self._voicing(ask.number)
                tally.add(self._ask(ask, voice, time.perf_counter()))

        begun = time.perf_counter()
        limit = begun + limit_s
        threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        return self._join(name, tally, threads, begun, concurrency=concurrency)

    def open(self, name: str, asks: Sequence[Ask], arrivals: Sequence[float], *, rate: float) -> Load:
        """Ask at the planned `arrivals` [s], whatever has become of those before; each request has its own thread."""
        tally, threads = _Tally(len(asks)), []
        begun = time.perf_counter()
        for ask, arrival in zip(asks, arrivals, strict=True):
            voice, planned = self._voicing(ask.number), begun + arrival
            time.sleep(max(0.0, planned - time.perf_counter()))
            thread = threading.Thread(
                target=lambda *request: tally.add(self._ask(*request)), args=(ask, voice, planned), daemon=True
            )
            thread.start()
            threads.append(thread)
        return self._join(name, tally, threads, begun + arrivals[0], rate=rate)

    def paced(self, name: str, asks: Sequence[Ask], *, streams: int, length_s: float) -> Load:
        """Let `streams` listeners begin one after the other within `length_s`, their requests shared out evenly.

        Each asks again when it has heard its last answer to the end; it plays from 100 ms after the first chunk on.
        """
        tally = _Tally(len(asks))
        begun = time.perf_counter()

        def listen(number: int) -> None:
            planned = begun + number / streams * length_s
            for ask in asks[number::streams]:
                time.sleep(max(0.0, planned - time.perf_counter()))
                outcome = self._ask(ask, self._voicing(ask.number), planned)
                tally.add(outcome)
                planned += max(outcome.first_byte_s + BUFFER_S + outcome.audio_s, outcome.end_to_end_s)

        threads = [threading.Thread(target=listen, args=(number,), daemon=True) for number in range(streams)]
        for thread in threads:
            thread.start()
        return self._join(name, tally, threads, begun, concurrency=streams)

    def _join(
        self,
        name: str,
        tally: _Tally,
        threads: Sequence[threading.Thread],
        begun: float,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
    ) -> Load:
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        outcomes = tuple(tally.outcomes)
        return Load(name, concurrency, rate, seconds, outcomes, tally.early_bytes, resident_bytes())

    def _ask(self, ask: Ask, voice: dict[str, object], planned: float) -> Outcome:
        """Ask, and listen to the end; times count from `planned`."""
        listener, failure = Listener(), None
        reason: FinishReason | None = None
        late_s = time.perf_counter() - planned
        options = {**voice, "seed": ask.seed, "max_new_tokens": ask.max_new_tokens, "chunk_profile": self._profile}
        try:
            for chunk in self._engine.stream(ask.text, **options):  # type: ignore[arg-type]
                listener.hear(time.perf_counter() - planned, chunk.audio, chunk.sample_rate)
                reason = chunk.finish_reason
        except Exception as error:
            failure = str(getattr(error, "code", type(error).__name__))
        ended_s = time.perf_counter() - planned
        return listener.outcome(ended_s, late_s=late_s, failure=failure, is_cut=reason == "length")
