"""A load test of one engine: first alone, then each load that is asked for, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s1_mini.bench.clients import Clients, Load
from s1_mini.bench.report import describe_engine, first_p95_ratio, load_average
from s1_mini.bench.voices import VoiceState, choose_voice, without_voices
from s1_mini.bench.workload import Ask, make_workload, planned_arrivals
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.families.find import find_checkpoint
from s1_mini.runtime.process import frozen, prepare_process
from s1_mini.types import ChunkProfile

WARM_UP = 2  # requests before each load that count nowhere
MIN_IDLE = 8  # requests to an idle engine; a quarter of the workload if that is more


@dataclass(frozen=True)
class LoadTest:
    """What is measured. `concurrencies` and `rates` [requests/s] each make a load of `requests` requests."""

    concurrencies: tuple[int, ...]
    rates: tuple[float, ...]
    requests: int
    slots: int
    profile: ChunkProfile = "ttfa"
    voice: VoiceState = "cached"
    max_new_tokens: int = 200
    seed: int = 0
    has_baseline: bool = False
    checkpoint: Path | None = None
    device: str = "auto"


@dataclass
class LoadResult:
    """What was measured: an idle engine first, then each load; the baseline on an engine of its own."""

    idle: Load
    loads: list[Load]
    sequential: Load | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def all_loads(self) -> list[Load]:
        """Everything in the order of the table."""
        first = [] if self.sequential is None else [self.sequential]
        return [*first, self.idle, *self.loads]

    @property
    def busiest(self) -> Load:
        """The load of the greatest concurrency; of the greatest rate where there is none."""
        return max(self.loads, key=lambda load: (load.concurrency or 0, load.rate or 0.0))

    @property
    def ratios(self) -> dict[str, float | None]:
        """Tell how the busiest load compares with an idle engine, and with the baseline if there is one."""
        ratios = {"first_p95_ratio": first_p95_ratio(self.busiest, self.idle)}
        if self.sequential is not None:
            alone = self.sequential.audio_per_s
            ratios["speed_up"] = self.busiest.audio_per_s / alone if alone else None
        return ratios


def measure(test: LoadTest) -> LoadResult:
    """Measure all of `test`. Raises what the engine raises at its start; requests that fail are counted."""
    busy_before = load_average()
    num_idle = max(MIN_IDLE, test.requests // 4)
    counts = [num_idle, *[test.requests] * (len(test.concurrencies) + len(test.rates))]
    asks = iter(make_workload(sum(counts) + WARM_UP * len(counts), test.seed, test.max_new_tokens))
    # What warms up, and what counts, for each load. Nothing is asked twice of one engine.
    parts = [([next(asks) for _ in range(WARM_UP)], [next(asks) for _ in range(count)]) for count in counts]
    sequential = None
    if test.has_baseline and test.concurrencies:
        busiest = test.concurrencies.index(max(test.concurrencies))
        with _clients(test, slots=1) as (clients, _):
            sequential = _closed(clients, "sequential, 1 slot", parts[1 + busiest], 1)
    with _clients(test, slots=test.slots) as (clients, engine):
        coming = iter(parts)
        idle = _closed(clients, "idle, one at a time", next(coming), 1)
        loads = [_closed(clients, f"{many} at a time", next(coming), many) for many in test.concurrencies]
        for rate in test.rates:
            warm_up, counted = next(coming)
            clients.warm_up(warm_up)
            arrivals = planned_arrivals(len(counted), rate, test.seed)
            loads.append(clients.open(f"{rate:g} a second", counted, arrivals, rate=rate))
        load = busy_before[0] if busy_before else None  # others' work, from before ours began
        return LoadResult(idle, loads, sequential, describe_engine(engine) | {"load_average": load})


def _closed(clients: Clients, name: str, part: tuple[list[Ask], list[Ask]], concurrency: int) -> Load:
    clients.warm_up(part[0])
    return clients.closed(name, part[1], concurrency=concurrency)


@contextmanager
def _clients(test: LoadTest, slots: int) -> Iterator[tuple[Clients, ProductionTTSEngine]]:
    found = find_checkpoint(test.checkpoint)
    with without_voices(found) if test.voice == "none" else nullcontext(found) as checkpoint:
        config = EngineConfig(checkpoint_path=checkpoint, device=test.device, max_batch_size=slots)
        prepare_process()
        with ProductionTTSEngine(config) as engine, frozen():
            yield Clients(engine, choose_voice(test.voice, engine, test.seed), test.profile), engine
