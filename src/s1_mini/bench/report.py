"""How a benchmark is told: machine, commit and workload, a table, then one line of JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from s1_mini.bench.measure import Load


def describe_machine(device: str) -> dict[str, Any]:
    """Tell where and with what it was measured."""
    where = torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {"machine": f"{platform.machine()}, {where}", "torch": torch.__version__, "commit": _commit()}


def table(loads: Sequence[Load]) -> str:
    """Lay out what was measured, one line a load."""
    head = f"{'':<24} {'requests':>8} {'failed':>6} {'audio s/s':>9} {'first ms p50':>12} {'p95':>8}"
    lines = [
        f"{load.name:<24} {load.requests:>8} {load.failed:>6} {load.audio_per_s:>9.2f} {load.first_ms_p50:>12.0f} "
        f"{load.first_ms_p95:>8.0f}"
        for load in loads
    ]
    return "\n".join((head, *lines))


def json_line(facts: dict[str, Any], loads: Sequence[Load], **more: float) -> str:
    """Everything for a machine."""
    rows = [asdict(load) | {"audio_per_s": load.audio_per_s} for load in loads]
    return json.dumps({**facts, "loads": rows, **more})


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
