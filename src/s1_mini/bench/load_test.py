"""The load test of `s1-mini bench`: the engine at rest first, then each load, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s1_mini.bench.clients import MEASURES, Clients, Load
from s1_mini.bench.report import describe_engine, load_average, table
from s1_mini.bench.workload import Ask, VoiceState, choose_voice, make_workload, planned_arrivals, without_voices
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.runtime.process import frozen, prepare_process
from s1_mini.types import ChunkProfile
from s1_mini.weights.directory import DEFAULT_MODEL

WARM_UP = 2  # uncounted requests before each load
MIN_IDLE = 8  # requests to an idle engine; a quarter of the workload if that is more
Part = tuple[list[Ask], list[Ask]]  # warm-up and counted requests of one load


@dataclass(frozen=True)
class LoadTest:
    """Options of a load test. `concurrencies` and `rates` [requests/s] each make a load of `requests` requests."""

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
    """The idle engine, each load, and the baseline, which has an engine of its own."""

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
        """The load of the greatest concurrency (or rate) compared with the idle engine and the baseline."""
        busiest = max(self.loads, key=lambda load: (load.concurrency or 0, load.rate or 0.0))
        ratios = {"first_p95_ratio": first_p95_ratio(busiest, self.idle)}
        if self.sequential is not None:
            alone = self.sequential.audio_per_s
            ratios["speed_up"] = busiest.audio_per_s / alone if alone else None
        return ratios

    def data(self) -> list[dict[str, Any]]:
        """Return every load for the line of JSON."""
        return [load_data(load, self.idle) for load in self.all_loads]

    def tables(self) -> str:
        """Return a table with one line per load, and one with each of its measures."""
        head = ["load", "requests", "failed", "audio s/s", "underruns", "100 ms buffer", "first p95 ratio", "memory MB"]
        keys = ("name", "requests", "failed", "audio_per_s", "underruns", "underruns_100ms", "first_p95_ratio")
        whole = [[*(each[key] for key in keys), each["memory_mb"]["growth"]] for each in self.data()]
        measures = [
            [load.name, name, *load.figures[name].values()]
            for load in self.all_loads
            for name in MEASURES
            if name != "late_ms" or load.rate is not None  # a closed load is never late
        ]
        return f"{table(head, whole)}\n{table(['load', 'of a request', 'p50', 'p95', 'p99'], measures)}"


def first_p95_ratio(load: Load, idle: Load) -> float | None:
    """Return the p95 of the time to first audio, relative to an idle engine."""
    here, there = load.figures["first_byte_ms"]["p95"], idle.figures["first_byte_ms"]["p95"]
    return None if here is None or there is None else here / there


def load_data(load: Load, idle: Load) -> dict[str, Any]:
    """Return one load for the line of JSON."""
    return {
        "name": load.name,
        "concurrency": load.concurrency,
        "rate": load.rate,
        "requests": len(load.outcomes),
        "failed": load.num_failed,
        "failures": load.failures,
        "cut": sum(one.is_cut for one in load.outcomes),
        "seconds": load.seconds,
        "audio_s": load.audio_s,
        "audio_per_s": load.audio_per_s,
        "underruns": sum(one.underruns for one in load.outcomes),
        "underruns_100ms": sum(one.underruns_buffered for one in load.outcomes),
        "first_p95_ratio": first_p95_ratio(load, idle),
        "memory_mb": {
            "at_tenth": load.early_bytes / 1e6,
            "at_end": load.late_bytes / 1e6,
            "growth": load.growth_mb,
        },
        "figures": load.figures,
    }


def measure(test: LoadTest) -> LoadResult:
    """Run a load test. Raises what the engine raises at its start; failed requests are counted."""
    busy_before = load_average()  # other work, before ours begins
    counts = [max(MIN_IDLE, test.requests // 4)]
    counts += [test.requests] * (len(test.concurrencies) + len(test.rates))
    asks = iter(make_workload(sum(counts) + WARM_UP * len(counts), test.seed, test.max_new_tokens))
    parts = [([next(asks) for _ in range(WARM_UP)], [next(asks) for _ in range(count)]) for count in counts]
    sequential = None
    if test.has_baseline and test.concurrencies:
        busiest = test.concurrencies.index(max(test.concurrencies))
        with _clients(test, slots=1) as (clients, _):
            sequential = _closed(clients, "sequential, 1 slot", parts[1 + busiest], 1)
    with _clients(test, slots=test.slots) as (clients, engine):
        idle = _closed(clients, "idle, one at a time", parts[0], 1)
        closed, opened = parts[1 : 1 + len(test.concurrencies)], parts[1 + len(test.concurrencies) :]
        loads = [
            _closed(clients, f"{many} at a time", part, many)
            for many, part in zip(test.concurrencies, closed, strict=True)
        ]
        for rate, (warm_up, counted) in zip(test.rates, opened, strict=True):
            clients.warm_up(warm_up)
            arrivals = planned_arrivals(len(counted), rate, test.seed)
            loads.append(clients.open(f"{rate:g} a second", counted, arrivals, rate=rate))
        facts = describe_engine(engine) | {"load_average": busy_before[0] if busy_before else None}
        return LoadResult(idle, loads, sequential, facts)


def _closed(clients: Clients, name: str, part: Part, concurrency: int) -> Load:
    clients.warm_up(part[0])
    return clients.closed(name, part[1], concurrency=concurrency)


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
