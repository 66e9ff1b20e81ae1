"""How a benchmark is told: machine, commit and workload, a table, then one line of JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from s1_mini.bench.figures import MEASURES
from s1_mini.bench.load import Load

_NONE = "–"


def describe_machine(device: str) -> dict[str, Any]:
    """Tell where and with what it was measured."""
    where = torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {"machine": f"{platform.machine()}, {where}", "torch": torch.__version__, "commit": _commit()}


def table(loads: Sequence[Load], idle: Load) -> str:
    """Lay out what was measured: one line a load, then one for each of its measures."""
    head = (
        f"{'':<20} {'requests':>8} {'failed':>6} {'audio s/s':>9} {'underruns':>9} {'100 ms buffer':>13} "
        f"{'first p95 ratio':>15} {'memory MB':>10}"
    )
    lines = [_load_line(load, idle) for load in loads]
    second = f"{'':<20} {'of a request':<18} {'p50':>10} {'p95':>10} {'p99':>10}"
    rows = [_measure_line(load, name) for load in loads for name in _told(load)]
    return "\n".join((head, *lines, second, *rows))


def _told(load: Load) -> list[str]:
    """All measures; where a client asks as soon as it can, nothing can be late."""
    return [name for name in MEASURES if name != "late_ms" or load.rate is not None]


def _load_line(load: Load, idle: Load) -> str:
    return (
        f"{load.name:<20} {len(load.outcomes):>8} {sum(load.failures.values()):>6} {load.audio_per_s:>9.2f} "
        f"{_sum(load, 'underruns'):>9} {_sum(load, 'underruns_buffered'):>13} "
        f"{_number(first_p95_ratio(load, idle)):>15} {load.growth_mb:>+10.1f}"
    )


def _measure_line(load: Load, name: str) -> str:
    values = [_number(value) for value in load.figures[name].values()]
    return f"{load.name:<20} {name:<18} " + " ".join(f"{value:>10}" for value in values)


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _sum(load: Load, name: str) -> int:
    return sum(getattr(one, name) for one in load.outcomes)


def failure_lines(loads: Sequence[Load]) -> list[str]:
    """One sentence for each load and code of error."""
    return [f"{load.name}: {count} failed, {code}" for load in loads for code, count in load.failures.items()]


def first_p95_ratio(load: Load, idle: Load) -> float | None:
    """Tell how much later the first sound comes than from an idle engine, at p95."""
    here, there = load.figures["first_byte_ms"]["p95"], idle.figures["first_byte_ms"]["p95"]
    return None if here is None or there is None else here / there


def json_line(facts: Mapping[str, Any], loads: Sequence[Load], idle: Load, **more: float | None) -> str:
    """Everything for a machine."""
    return json.dumps({**facts, "loads": [_load_data(load, idle) for load in loads], **more})


def _load_data(load: Load, idle: Load) -> dict[str, Any]:
    return {
        "name": load.name,
        "concurrency": load.concurrency,
        "rate": load.rate,
        "requests": len(load.outcomes),
        "failed": sum(load.failures.values()),
        "failures": load.failures,
        "cut": sum(one.is_cut for one in load.outcomes),
        "seconds": load.seconds,
        "audio_s": load.audio_s,
        "audio_per_s": load.audio_per_s,
        "underruns": _sum(load, "underruns"),
        "underruns_100ms": _sum(load, "underruns_buffered"),
        "first_p95_ratio": first_p95_ratio(load, idle),
        "memory_mb": {"at_tenth": load.early_bytes / 1e6, "at_end": load.late_bytes / 1e6, "growth": load.growth_mb},
        "figures": load.figures,
    }


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
