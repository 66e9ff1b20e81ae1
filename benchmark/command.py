"""Options, output and error handling of all commands of this folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from s1_mini.exceptions import S1MiniError


def make_parser(description: str | None, *, opens: bool = True) -> argparse.ArgumentParser:
    """Make the parser of a command; if it `opens` a checkpoint, with the options that name it and the device."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if opens:
        parser.add_argument("--checkpoint", type=Path, help="[the voice that ships]")
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    return parser


def numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers above 0 with commas between them. Raises `ValueError`."""
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 1:
        raise ValueError(text)
    return found


def names(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated names, which returns them in the order of `allowed`."""

    def read(text: str) -> tuple[str, ...]:
        found = text.split(",")
        if unknown := sorted({*found} - {*allowed}):
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return tuple(name for name in allowed if name in found)

    return read


def give(result: Mapping[str, object], output: Path | None) -> None:
    """Print a result as one line of JSON, and write that to a file if one is named."""
    line = json.dumps(result)
    if output is not None:
        output.write_text(line + "\n", encoding="utf-8")
    print(line)


def run(main: Callable[[], int]) -> int:
    """Run a command; give its exit code."""
    try:
        return main()
    except S1MiniError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 1
