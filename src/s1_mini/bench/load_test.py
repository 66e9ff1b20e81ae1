"""The load test of `s1-mini bench`: first single requests to an idle engine, then one load after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from s1_mini.bench.clients import Clients, Load
from s1_mini.bench.report import describe_engine, load_average, table
from s1_mini.bench.workload import Ask, VoiceState, choose_voice, make_workload, planned_arrivals, without_voices
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.runtime.process import frozen, prepare_process
from s1_mini.types import ChunkProfile
from s1_mini.weights.directory import DEFAULT_MODEL

WARM_UP = 2  # uncounted requests before each load
MIN_IDLE = 8  # the idle engine gets a quarter of `LoadTest.requests`, but at least this many


@dataclass(frozen=True)
class LoadTest:
    """Options of a load test: one load of `requests` requests for each concurrency and each rate [requests/s]."""

    concurrencies: tuple[int, ...]
    rates: tuple[float, ...]
    requests: int
    slots: int
    profile: ChunkProfile = "ttfa"
    voice: VoiceState = "cached"
    max_new_tokens: int = 200
    seed: int = 0
    has_baseline: bool = False
    checkpoint: Path = DEFAULT_MODEL
    device: str = "auto"


@dataclass
class LoadResult:
    """The results of the requests to an idle engine, of each load, and of the baseline, which has its own engine."""

    idle: Load
    loads: list[Load]
    sequential: Load | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def all_loads(self) -> list[Load]:
        """All loads in the order of the table."""
        return [*([] if self.sequential is None else [self.sequential]), self.idle, *self.loads]

    @property
    def ratios(self) -> dict[str, float | None]:
        """Figures at the highest concurrency (or rate) relative to the idle engine and to the baseline."""
        busiest = max(self.loads, key=lambda load: (load.concurrency or 0, load.rate or 0.0))
        ratios = {"first_p95_ratio": busiest.first_p95_ratio(self.idle)}
        if self.sequential is not None:
            alone = self.sequential.audio_per_s
            ratios["speed_up"] = busiest.audio_per_s / alone if alone else None
        return ratios

    def data(self) -> list[dict[str, Any]]:
        return [load.data(self.idle) for load in self.all_loads]

    def tables(self) -> str:
        """Return a table with one line per load, and a second table with one line per load and measure."""
        head = ["load", "requests", "failed", "audio s/s", "underruns", "100 ms buffer", "first p95 ratio", "memory MB"]
        keys = ("name", "requests", "failed", "audio_per_s", "underruns", "underruns_100ms", "first_p95_ratio")
        whole = [[*(each[key] for key in keys), each["memory_mb"]["growth"]] for each in self.data()]
        measures = [
            [load.name, name, *figures.values()]
            for load in self.all_loads
            for name, figures in load.figures.items()
            if name != "late_ms" or load.rate is not None  # a closed load is never late
        ]
        return f"{table(head, whole)}\n{table(['load', 'per request', 'p50', 'p95', 'p99'], measures)}"


def measure(test: LoadTest) -> LoadResult:
    """Run a load test. Failed requests are counted.

    Raises `ParameterError` for too many requests, and the errors of the engine's start.
    """
    busy_before = load_average()  # of other processes
    counts = [max(MIN_IDLE, test.requests // 4)]
    counts += [test.requests] * (len(test.concurrencies) + len(test.rates))
    asks = make_workload(sum(counts) + WARM_UP * len(counts), test.seed, test.max_new_tokens)
    ends = list(accumulate(WARM_UP + count for count in counts))
    at_rest, *parts = [asks[end - WARM_UP - count : end] for count, end in zip(counts, ends, strict=True)]
    closed, opened = parts[: len(test.concurrencies)], parts[len(test.concurrencies) :]
    sequential = None
    if test.has_baseline and closed:
        with _clients(test, slots=1) as (clients, _):
            busiest = closed[test.concurrencies.index(max(test.concurrencies))]
            sequential = _closed(clients, "sequential, 1 slot", busiest, 1)
    with _clients(test, slots=test.slots) as (clients, engine):
        idle = _closed(clients, "idle, one at a time", at_rest, 1)
        loads = [
            _closed(clients, f"{many} at a time", part, many)
            for many, part in zip(test.concurrencies, closed, strict=True)
        ]
        for rate, part in zip(test.rates, opened, strict=True):
            clients.warm_up(part[:WARM_UP])
            arrivals = planned_arrivals(test.requests, rate, test.seed)
            loads.append(clients.open(f"{rate:g} a second", part[WARM_UP:], arrivals, rate=rate))
        facts = describe_engine(engine) | {"load_average": busy_before[0] if busy_before else None}
        return LoadResult(idle, loads, sequential, facts)


def _closed(clients: Clients, name: str, asks: Sequence[Ask], concurrency: int) -> Load:
    clients.warm_up(asks[:WARM_UP])
    return clients.closed(name, asks[WARM_UP:], concurrency=concurrency)


def failure_lines(loads: Sequence[Load]) -> list[str]:
    """Return one sentence for each load and error code."""
    return [f"{load.name}: {count} failed, {code}" for load in loads for code, count in load.failures.items()]


@contextmanager
def _clients(test: LoadTest, slots: int) -> Iterator[tuple[Clients, ProductionTTSEngine]]:
    with without_voices(test.checkpoint) if test.voice == "none" else nullcontext(test.checkpoint) as checkpoint:
        config = EngineConfig(checkpoint_path=checkpoint, device=test.device, max_batch_size=slots)
        prepare_process()
        with ProductionTTSEngine(config) as engine, frozen():
            yield Clients(engine, choose_voice(test.voice, engine, test.seed), test.profile), engine
