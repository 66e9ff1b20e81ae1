"""`s1-mini bench`: how many seconds of sound a second, and how soon the first of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from s1_mini.types import ChunkProfile

SCHEDULER_ROWS, SCHEDULER_TURNS = 64, 500


def bench(
    checkpoint: Annotated[Path | None, typer.Option(help="[the voice that ships]", show_default=False)] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each load.")] = 32,
    profile: Annotated[ChunkProfile, typer.Option(help="How sound is cut into chunks.")] = "ttfa",
    baseline: Annotated[
        Literal["none", "sequential"], typer.Option(help="Measure one request at a time beside it, in the same run.")
    ] = "none",
    scheduler: Annotated[bool, typer.Option("--scheduler", help="Measure a turn's bookkeeping at 64 rows.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 200,
    device: Annotated[str, typer.Option()] = "auto",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Measure the engine on this machine: a table, then one line of JSON.

    Example: s1-mini bench --concurrency 8 --baseline sequential
    """
    from s1_mini.bench.measure import Load, measure_load, measure_scheduler
    from s1_mini.bench.report import describe_machine, json_line, table
    from s1_mini.bench.workload import make_workload
    from s1_mini.config import EngineConfig
    from s1_mini.engine import ProductionTTSEngine

    asks = make_workload(requests, seed, max_new_tokens)
    loads: list[Load] = []
    more: dict[str, float] = {}

    def measure(name: str, rows: int, together: int, count: int) -> None:
        config = EngineConfig(checkpoint_path=checkpoint, device=device, max_batch_size=rows)
        with ProductionTTSEngine(config) as engine:
            loads.append(measure_load(name, engine, asks[:count], concurrency=together, profile=profile))
            facts.update(describe_machine(engine.health_check()["device"]["value"]))

    facts: dict[str, object] = {"requests": requests, "concurrency": concurrency, "profile": profile, "seed": seed}
    if baseline == "sequential":
        measure("sequential, 1 slot", 1, 1, max(4, requests // 4))
    measure("idle, one at a time", concurrency, 1, max(4, requests // 4))
    measure(f"{concurrency} at a time", concurrency, concurrency, requests)
    more["first_p95_ratio"] = loads[-1].first_ms_p95 / loads[-2].first_ms_p95
    if baseline == "sequential":
        more["speed_up"] = loads[-1].audio_per_s / loads[0].audio_per_s
    if scheduler:
        more["scheduler_ms"] = measure_scheduler(SCHEDULER_ROWS, SCHEDULER_TURNS)

    typer.echo(f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}, profile {profile}, seed {seed}")
    typer.echo(table(loads))
    for name, value in more.items():
        typer.echo(f"{name} {value:.3f}")
    typer.echo(json_line(facts, loads, **more))
