"""Check everything: set up `.venv`, then lint, layout, types, imports and tests, as CI does.

Example: python scripts/test.py -k scheduler

Needs Python 3.11 or newer and this checkout, nothing else. Every check runs, also after one that failed; the exit
code is 0 only if all passed. Arguments go to pytest.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import environment

ROOT = Path(__file__).resolve().parent.parent
EVERYWHERE = "not gpu and not java and not image and not schema and not sdk"  # what needs nothing special and not long


class Result(NamedTuple):
    """How one check went."""

    name: str
    seconds: float
    passed: bool


def main(arguments: "list[str]") -> int:
    """Run all checks in the folder of the checkout and close with a summary."""
    gpu, pytest_arguments = parse(arguments)
    python = environment.ensure(ROOT, ["test"])
    results = [run_check(name, command) for name, command in checks(python, gpu, pytest_arguments)]
    print(summary(results), flush=True)
    return 0 if all(result.passed for result in results) else 1


def parse(arguments: "Sequence[str]") -> "tuple[bool, list[str]]":
    """Return whether the GPU tests are meant, and the arguments for pytest."""
    parser = argparse.ArgumentParser(
        description="Set up .venv and run ruff, mypy, lint-imports and pytest.",
        epilog="All other arguments go to pytest: python scripts/test.py -k scheduler -x",
        allow_abbrev=False,
    )
    parser.add_argument("--gpu", action="store_true", help="run the tests that need an NVIDIA GPU, and only those")
    options, pytest_arguments = parser.parse_known_args(arguments)
    return options.gpu, pytest_arguments


def checks(python: Path, gpu: bool, pytest_arguments: "Sequence[str]") -> "list[tuple[str, list[str]]]":
    """Return name and command of each check, in the order they run; pytest is last."""
    run = [str(python), "-m"]
    return [
        ("ruff check", [*run, "ruff", "check"]),
        ("ruff format", [*run, "ruff", "format", "--check"]),
        ("mypy", [*run, "mypy"]),
        ("lint-imports", [str(python.with_name("lint-imports"))]),  # has no `python -m`
        ("pytest", [*run, "pytest", "-m", "gpu" if gpu else EVERYWHERE, *pytest_arguments]),
    ]


def run_check(name: str, command: "Sequence[str]") -> Result:
    """Run one check with its output shown."""
    print(f"\n--- {name}", flush=True)
    start = time.monotonic()
    code = subprocess.call(command, cwd=str(ROOT), env=environment.child_env(os.environ, sys.stdout.isatty()))
    return Result(name, time.monotonic() - start, code == 0)


def summary(results: "Sequence[Result]") -> str:
    """Return a line per check and a closing one, in words that no test runner closes with."""
    lines = [f"{r.name:<14}{r.seconds:7.1f} s  {'pass' if r.passed else 'FAIL'}" for r in results]
    failed = [r.name for r in results if not r.passed]
    closing = f"Not in order: {', '.join(failed)}." if failed else "All checks pass."
    return "\n".join(["\n--- summary", *lines, closing])


if __name__ == "__main__":
    sys.exit(environment.run_main(main))
