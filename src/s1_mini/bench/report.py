"""How a measurement is told: machine and commit, a table for people, data for one line of JSON."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from s1_mini.bench.clients import Load
from s1_mini.bench.figures import MEASURES
from s1_mini.engine import ProductionTTSEngine

NONE = "–"
_HEAD = ["load", "requests", "failed", "audio s/s", "underruns", "100 ms buffer", "first p95 ratio", "memory MB"]


def table(head: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    """Lay out rows in columns, text to the left and numbers to the right, these in three digits or so."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return NONE if value is None else value
    return f"{value:.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def load_average() -> list[float] | None:
    """Tell how many wanted a core in the last 1, 5 and 15 minutes; None where the system does not (Windows)."""
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None


def describe_machine(device: str) -> dict[str, Any]:
    """Tell where and with what it was measured."""
    where = torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {"machine": f"{platform.machine()}, {where}", "torch": torch.__version__, "commit": _commit()}


def describe_engine(engine: ProductionTTSEngine) -> dict[str, Any]:
    """Tell where an engine runs, in which formats, and with how many slots."""
    health = engine.health_check()
    formats = {name: health[name]["value"] for name in ("precision", "weights_dtype", "kv_dtype", "compile")}
    return describe_machine(health["device"]["value"]) | formats | {"slots": health["slots"]["total"]}


def load_tables(loads: Sequence[Load], idle: Load) -> str:
    """Lay out what was measured: a table with one line a load, then one with each of its measures."""
    whole = [[load.name, *_numbers(load, idle)] for load in loads]
    # Where a client asks as soon as it can, nothing can be late.
    told = [(load, name) for load in loads for name in MEASURES if name != "late_ms" or load.rate is not None]
    measures = [[load.name, name, *load.figures[name].values()] for load, name in told]
    return f"{table(_HEAD, whole)}\n{table(['load', 'of a request', 'p50', 'p95', 'p99'], measures)}"


def failure_lines(loads: Sequence[Load]) -> list[str]:
    """One sentence for each load and code of error."""
    return [f"{load.name}: {count} failed, {code}" for load in loads for code, count in load.failures.items()]


def first_p95_ratio(load: Load, idle: Load) -> float | None:
    """Tell how much later the first sound comes than from an idle engine, at p95."""
    here, there = load.figures["first_byte_ms"]["p95"], idle.figures["first_byte_ms"]["p95"]
    return None if here is None or there is None else here / there


def load_data(load: Load, idle: Load) -> dict[str, Any]:
    """Everything of one load for a machine."""
    requests, failed, audio_per_s, underruns, buffered, ratio, growth = _numbers(load, idle)
    return {
        "name": load.name,
        "concurrency": load.concurrency,
        "rate": load.rate,
        "requests": requests,
        "failed": failed,
        "failures": load.failures,
        "cut": sum(one.is_cut for one in load.outcomes),
        "seconds": load.seconds,
        "audio_s": load.audio_s,
        "audio_per_s": audio_per_s,
        "underruns": underruns,
        "underruns_100ms": buffered,
        "first_p95_ratio": ratio,
        "memory_mb": {"at_tenth": load.early_bytes / 1e6, "at_end": load.late_bytes / 1e6, "growth": growth},
        "figures": load.figures,
    }


def _numbers(load: Load, idle: Load) -> tuple[float | None, ...]:
    """What a line of the table tells of a load, in its order."""
    return (
        len(load.outcomes),
        load.num_failed,
        load.audio_per_s,
        sum(one.underruns for one in load.outcomes),
        sum(one.underruns_buffered for one in load.outcomes),
        first_p95_ratio(load, idle),
        load.growth_mb,
    )


def _commit() -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
