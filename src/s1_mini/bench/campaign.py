"""A whole benchmark: the loads that were asked for, one after the other, and what they are compared with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s1_mini.bench.load import Clients, Load
from s1_mini.bench.report import describe_machine, first_p95_ratio
from s1_mini.bench.voicing import VoiceState, choose_voicing, without_voices
from s1_mini.bench.workload import Ask, make_workload, planned_arrivals
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.types import ChunkProfile
from s1_mini.weights.directory import find_checkpoint

WARM_UP = 2  # requests before each load that count nowhere
MIN_IDLE = 8  # requests to an idle engine; a quarter of the workload if that is more


@dataclass(frozen=True)
class Plan:
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
class Result:
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
    def first_p95_ratio(self) -> float | None:
        """How much later the first sound comes under the busiest load than from an idle engine, at p95."""
        return first_p95_ratio(self.busiest, self.idle)

    @property
    def speed_up(self) -> float | None:
        """Sound a second of the busiest load, by that of the same work one request at a time."""
        if self.sequential is None or not self.sequential.audio_s:
            return None
        return self.busiest.audio_per_s / self.sequential.audio_per_s


def measure(plan: Plan) -> Result:
    """Measure all of `plan`. Raises what the engine raises at its start; requests that fail are counted."""
    busy_before = _load_average()
    num_idle = max(MIN_IDLE, plan.requests // 4)
    counts = [num_idle, *[plan.requests] * (len(plan.concurrencies) + len(plan.rates))]
    asks = make_workload(sum(counts) + WARM_UP * len(counts), plan.seed, plan.max_new_tokens)
    parts = _parts(asks, counts)
    sequential = None
    if plan.has_baseline and plan.concurrencies:
        busiest = plan.concurrencies.index(max(plan.concurrencies))
        with _clients(plan, slots=1) as (clients, _):
            sequential = _closed(clients, "sequential, 1 slot", parts[1 + busiest], 1)
    with _clients(plan, slots=plan.slots) as (clients, engine):
        coming = iter(parts)
        idle = _closed(clients, "idle, one at a time", next(coming), 1)
        loads = [_closed(clients, f"{many} at a time", next(coming), many) for many in plan.concurrencies]
        for rate in plan.rates:
            warm_up, counted = next(coming)
            clients.warm_up(warm_up)
            arrivals = planned_arrivals(len(counted), rate, plan.seed)
            loads.append(clients.open(f"{rate:g} a second", counted, arrivals, rate=rate))
        return Result(idle, loads, sequential, _facts(engine) | {"load_average": busy_before})


def _load_average() -> float | None:
    """Tell how many processes wanted to compute in the last minute: others', if it is asked before the work."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _parts(asks: list[Ask], counts: list[int]) -> list[tuple[list[Ask], list[Ask]]]:
    """Cut a workload into one part a load: what warms up, and what counts. Nothing is asked twice of one engine."""
    coming = iter(asks)
    return [([next(coming) for _ in range(WARM_UP)], [next(coming) for _ in range(count)]) for count in counts]


def _closed(clients: Clients, name: str, part: tuple[list[Ask], list[Ask]], concurrency: int) -> Load:
    clients.warm_up(part[0])
    return clients.closed(name, part[1], concurrency=concurrency)


@contextmanager
def _clients(plan: Plan, slots: int) -> Iterator[tuple[Clients, ProductionTTSEngine]]:
    checkpoint = find_checkpoint(plan.checkpoint)
    if plan.voice == "none":
        with without_voices(checkpoint) as bare, _clients_of(plan, bare, slots) as clients:
            yield clients
    else:
        with _clients_of(plan, checkpoint, slots) as clients:
            yield clients


@contextmanager
def _clients_of(plan: Plan, checkpoint: Path, slots: int) -> Iterator[tuple[Clients, ProductionTTSEngine]]:
    config = EngineConfig(checkpoint_path=checkpoint, device=plan.device, max_batch_size=slots)
    with ProductionTTSEngine(config) as engine:
        yield Clients(engine, choose_voicing(plan.voice, engine, plan.seed), plan.profile), engine


def _facts(engine: ProductionTTSEngine) -> dict[str, Any]:
    health = engine.health_check()
    more = {name: health[name]["value"] for name in ("precision", "weights_dtype", "kv_dtype", "compile")}
    return describe_machine(health["device"]["value"]) | more | {"slots": health["slots"]["total"]}
