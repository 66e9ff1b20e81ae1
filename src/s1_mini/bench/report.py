"""The report of a measurement: machine and commit, and a table."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

NONE = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    """Return rows as aligned text, with numbers rounded to about three digits."""
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
    """Return the load average of the last 1, 5 and 15 minutes; None on Windows."""
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None


def describe_machine(device: str) -> dict[str, Any]:
    """Return machine, torch version and commit."""
    import torch  # importing torch takes seconds, and clients of a server do not need it

    where = torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {"machine": f"{platform.machine()}, {where}", "torch": torch.__version__, "commit": _commit()}


def describe_engine(engine: ProductionTTSEngine) -> dict[str, Any]:
    """Return the machine of an engine, its number formats and its slots."""
    health = engine.health_check()
    formats = {name: health[name]["value"] for name in ("precision", "weights_dtype", "kv_dtype", "compile")}
    return describe_machine(health["device"]["value"]) | formats | {"slots": health["slots"]["total"]}


def _commit() -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are fixed
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
