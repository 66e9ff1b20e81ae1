"""Check everything: set up `.venv`, run lint, layout, types, imports and the tests side by side, as CI does.

Example: python scripts/test.py -k scheduler

Needs only Python 3.11 or newer and this checkout. All checks run, even after a failure; the exit code is 0 only
if all passed. With --gpu, pytest runs only the tests that need an NVIDIA GPU; the other checks run as usual. With
--infra, only the tests of infra/ run, in `.venv-infra`: cdk synth and the tests of its templates, which also need
Node 22 or newer. All other arguments are passed to pytest.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import environment

ROOT = Path(__file__).resolve().parent.parent
# Tests without these marks need no special machine, no download and little time; `EVERYWHERE` selects them.
MARKED = "gpu java docker image schema sdk ray vllm docs clients long"
EVERYWHERE = " and ".join("not " + mark for mark in MARKED.split())
# The tests of a file run in one process, because they share fixtures that are slow to start; files run in the order of
# tests/conftest.py. One more process than cores, but at most four, because tests wait for servers, browsers and clocks.
# `-n 0` is for a debugger. Tests with a GPU run in one process, unless `-n` is given.
PROCESSES = min(4, (os.cpu_count() or 1) + 1)
SIDE_BY_SIDE = ("-n", str(PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder")
# Without this step, each process compiles all imported modules (20 s of CPU time) and the built-in voice's kernels
# (10 s) at the same time. torch imports `torch._dynamo` only when it is first used; compiling it takes 4 s. The run of
# pytest that follows reports errors.
COMPILE_IMPORTS = """
import contextlib, os, pytest, torch._dynamo
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
    pytest.main(["--collect-only", "-n", "0"])
with contextlib.suppress(Exception):
    from s1_mini import EngineConfig, ProductionTTSEngine
    with ProductionTTSEngine(EngineConfig(device="cpu", compile="true")):
        pass
"""
if sys.platform == "win32":
    LOWER_PRIORITY = None
else:
    LOWER_PRIORITY = partial(os.nice, 5)
MIN_NODE = 22


class Result(NamedTuple):
    """Outcome of one check."""

    name: str
    seconds: float
    passed: bool


def main(arguments: "list[str]") -> int:
    """Run all checks in the folder of the checkout, then print a summary."""
    marks, pytest_arguments = parse(arguments)
    if marks == "infra":
        require_node(node_version())
        wanted = infra_checks(environment.ensure(ROOT, recipe=environment.INFRA), pytest_arguments)
    else:
        is_new = not (ROOT / "tests" / "__pycache__").exists()
        wanted = checks(environment.ensure(ROOT, ["test"]), marks, pytest_arguments, is_new=is_new)
    results = run_all(wanted)
    print(summary(results), flush=True)
    return 0 if all(result.passed for result in results) else 1


def parse(arguments: "Sequence[str]") -> "tuple[str, list[str]]":
    """Return the selected tests, as an expression of pytest's marks, and the arguments for pytest."""
    parser = argparse.ArgumentParser(
        description="Set up .venv and run ruff, mypy, lint-imports and pytest.",
        epilog="All other arguments go to pytest: python scripts/test.py -k scheduler -x",
        allow_abbrev=False,
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--gpu", action="store_true", help="run all checks, but only the tests that need an NVIDIA GPU")
    only.add_argument(
        "--infra", action="store_true", help="set up .venv-infra (650 MB) and run only the tests of infra/, there"
    )
    options, pytest_arguments = parser.parse_known_args(arguments)
    for path in (argument.partition("::")[0] for argument in pytest_arguments):
        if path.startswith("tests/") and not (ROOT / path).exists():
            parser.error(f"{path} does not exist; the tests are in {ROOT / 'tests'}")
    return "gpu" if options.gpu else "infra" if options.infra else EVERYWHERE, pytest_arguments


def checks(
    python: Path, marks: str, pytest_arguments: "Sequence[str]", *, is_new: bool = False
) -> "list[tuple[str, list[str]]]":
    """Return name and command of each check; pytest is last.

    `is_new`: this checkout has no bytecode yet, so compile the imports of the tests before they begin.
    """
    run = [str(python), "-m"]
    return [
        ("ruff check", [*run, "ruff", "check"]),
        ("ruff format", [*run, "ruff", "format", "--check"]),
        ("mypy", [*run, "mypy"]),
        ("mypy win32", [*run, "mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32"]),
        ("lint-imports", [str(python.with_name("lint-imports" + python.suffix))]),  # has no `python -m`
        *([("bytecode", [str(python), "-c", COMPILE_IMPORTS])] if is_new else []),
        ("pytest", [*run, "pytest", "-m", marks, *(() if marks == "gpu" else SIDE_BY_SIDE), *pytest_arguments]),
    ]


def infra_checks(python: Path, pytest_arguments: "Sequence[str]") -> "list[tuple[str, list[str]]]":
    """Return the check of infra/, without tests/conftest.py, which needs the engine."""
    command = [str(python), "-m", "pytest", "-m", "infra", "--confcutdir=tests/infra", "tests/infra"]
    return [("pytest infra", [*command, *pytest_arguments])]


def node_version() -> str:
    """Return the output of `node --version`, empty without Node."""
    node = shutil.which("node")
    return subprocess.check_output([node, "--version"], universal_newlines=True) if node else ""


def require_node(version: str) -> None:
    """Raise `SetupError` unless `version` is a Node that the CDK supports."""
    found = re.match(r"v(\d+)\.", version)
    if not found or int(found.group(1)) < MIN_NODE:
        raise environment.SetupError(
            f"The CDK needs Node {MIN_NODE} or newer; PATH has {version.strip() or 'none'}. Install it "
            "(https://nodejs.org, or your system's package `nodejs`), then run this again."
        )


def run_all(wanted: "Sequence[tuple[str, list[str]]]") -> "list[Result]":
    """Run the checks side by side, and print the output of each when it has ended, but that of pytest as it comes.

    pytest is the last one and begins when `bytecode` has ended; mypy may then still run, with a lower priority.
    """
    start, waiting, results = time.monotonic(), {}, {}
    outputs: dict[str, IO[bytes]] = {}
    env = environment.child_env(os.environ, is_terminal=False)
    *others, (last, command) = wanted
    with ExitStack() as stack:

        def begin(command: "Sequence[str]", **options: Any) -> "subprocess.Popen[bytes]":
            process = subprocess.Popen(command, cwd=str(ROOT), **options)
            stack.callback(process.wait)
            stack.callback(process.kill)  # does nothing if the process has ended
            return process

        for name, other in others:
            outputs[name] = stack.enter_context(tempfile.TemporaryFile())
            yields = None if name == "bytecode" else LOWER_PRIORITY
            process = begin(other, stdout=outputs[name], stderr=subprocess.STDOUT, env=env, preexec_fn=yields)
            waiting[name] = process, start
        while waiting or last not in results:
            if last not in waiting and last not in results and "bytecode" not in waiting:
                print(f"\n--- {last}", flush=True)
                process = begin(command, env=environment.child_env(os.environ, sys.stdout.isatty()))
                waiting[last] = process, time.monotonic()
            for name in [name for name, (process, _) in waiting.items() if process.poll() is not None]:
                process, begun = waiting.pop(name)
                results[name] = Result(name, time.monotonic() - begun, process.returncode == 0)
                if name in outputs:
                    outputs[name].seek(0)
                    print(f"\n--- {name}\n{outputs[name].read().decode('utf-8', 'replace')}", end="", flush=True)
            time.sleep(0.05)
    return [results[name] for name, _ in wanted]


def summary(results: "Sequence[Result]") -> str:
    """Return a line for each check and a closing line that differs from those of test runners."""
    lines = [f"{r.name:<14}{r.seconds:7.1f} s  {'pass' if r.passed else 'FAIL'}" for r in results]
    failed = [r.name for r in results if not r.passed]
    closing = f"Failed: {', '.join(failed)}." if failed else "All checks pass."
    return "\n".join(["\n--- summary", *lines, closing])


if __name__ == "__main__":
    sys.exit(environment.run_main(main))
