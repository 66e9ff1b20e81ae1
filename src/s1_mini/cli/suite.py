"""`s1-mini bench --gpu-suite`: the figures that the engine is held to, measured by one command."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def run_gpu_suite(checkpoint: Path | None, *, device: str, seed: int, slots: int | None, output: Path | None) -> None:
    """Measure all figures: a table, then one line of JSON; the same into a file if one is named."""
    from s1_mini.audio.container import check_writable
    from s1_mini.bench.goals import table
    from s1_mini.bench.suite import SuitePlan, json_line, run_suite

    if output is not None:
        check_writable(output)
    plan = SuitePlan(checkpoint=checkpoint, device=device, seed=seed, slots=slots)
    result = run_suite(plan, lambda part: typer.echo(f"measuring: {part}", err=True))
    facts = result.facts
    work = facts["workload"]
    typer.echo(
        f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}, {facts['precision']}, "
        f"checkpoint {checkpoint or 'that ships'}"
    )
    typer.echo(
        f"{work['name']} workload: {facts['slots']} slots of {facts['columns']} columns; frames after "
        f"{work['context']} columns; voice of {work['reference_s']:g} s, at most {work['max_new_tokens']} frames; "
        f"{work['rate']:g} requests/s; {work['clients']} clients; seed {seed}; {facts['seconds']:g} s in all"
    )
    typer.echo(table(result.figures))
    if result.details["floor_ms"]:
        floors = ", ".join(f"{ms:.2f} at {rows}" for rows, ms in result.details["floor_ms"].items())
        typer.echo(f"floor of a frame on this card, ms: {floors} rows")
    for name, failures in result.details["failures"].items():
        typer.echo(f"{name}: failed {failures}")
    if output is not None:
        output.write_text(json.dumps(result.data(), indent=1) + "\n", encoding="utf-8")
    typer.echo(json_line(result))
