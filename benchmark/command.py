"""Options, output and error handling of all commands of this folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from s1_mini.bench.report import table
from s1_mini.exceptions import S1MiniError


def make_parser(description: str | None, *, opens: bool = True) -> argparse.ArgumentParser:
    """Return the parser of a command; with `opens`, it has options for the checkpoint and the device."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if opens:
        parser.add_argument("--checkpoint", type=Path, help="checkpoint directory [the built-in model]")
        parser.add_argument("--device", default="auto", help="device: auto, cpu, cuda, cuda:1 or mps [auto]")
    return parser


def numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers above 0. Raises `ValueError`."""
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 1:
        raise ValueError(text)
    return found


def names(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated names, which returns them in the order of `allowed`."""

    def parse(text: str) -> tuple[str, ...]:
        found = text.split(",")
        if unknown := sorted({*found} - {*allowed}):
            raise argparse.ArgumentTypeError(f"must be one or more of {', '.join(allowed)}, not {unknown[0]!r}")
        return tuple(name for name in allowed if name in found)

    return parse


def quantile_ms(seconds: Sequence[float], share: float, digits: int = 1) -> float:
    """Return a quantile in rounded milliseconds; 0 without values."""
    return round(1000 * float(np.quantile(seconds, share)), digits) if seconds else 0.0


def columns(rows: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> list[list[Any]]:
    """Return the values of these keys in each row."""
    return [[row[key] for key in keys] for row in rows]


def report(
    head: Sequence[str],
    rows: Iterable[Sequence[str | float | None]],
    result: Mapping[str, object],
    output: Path | None = None,
) -> None:
    """Print a table and a result as one line of JSON; write the JSON to a file if one is named."""
    line = json.dumps(result)
    if output is not None:
        output.write_text(line + "\n", encoding="utf-8")
    print(f"{table(head, rows)}\n{line}")


def run(main: Callable[[], int | None]) -> int:
    """Run a command; return its exit code."""
    try:
        return main() or 0
    except S1MiniError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 1
