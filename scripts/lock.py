"""Update the lock files, with the hashes of every pinned package on every supported system and Python.

Example: python scripts/lock.py --upgrade fastapi

Run it after a change to a requirements file. Versions are kept unless they must change or --upgrade names them. The
files of torch and pip are edited by hand (requirements-torch.lock.txt and requirements-pip.lock.txt say why). Needs uv
(`pip install uv`) and a package index. `--check` needs neither: it only checks that each package in a requirements file
is pinned, and that its pin has `via -r` and the file's name.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import environment

ROOT = Path(__file__).resolve().parent.parent
TORCH = "requirements-torch.lock.txt"
COMMAND = (
    "uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --annotation-style line --quiet"
)
# Dependencies of CUDA builds of torch, which pin them; other builds do not have these packages.
WITH_TORCH = re.compile(r"torch|triton|(cuda|nvidia)-.*")
BROWSER = "sys_platform == 'emscripten'"  # Python in a browser, where torch does not run


class Lock(NamedTuple):
    """A lock file, its inputs, and other locks whose versions it must use; with `above`, it omits their packages."""

    name: str
    inputs: "Sequence[str]"
    constraints: "Sequence[str]" = ()
    above: bool = False


ENGINE = (
    "requirements.txt",
    "requirements-server.txt",
    "requirements-aws.txt",
    "requirements-hub.txt",
    "requirements-otel.txt",
)
LOCKS = (
    Lock("requirements.lock.txt", ENGINE),
    Lock(
        "requirements-test.lock.txt",
        (
            *ENGINE,
            "requirements-play.txt",
            "requirements-replicas.txt",
            "requirements-corpus.txt",
            "requirements-wyoming.txt",
            "requirements-mcp.txt",
            "requirements-c2pa.txt",
            "requirements-av.txt",
            "requirements-test.txt",
        ),
        ("requirements.lock.txt",),
        above=True,
    ),
    Lock(
        "infra/requirements.lock.txt",
        ("infra/requirements.txt",),
        ("requirements.lock.txt", "requirements-test.lock.txt"),
    ),
    Lock("requirements-release.lock.txt", ("requirements-release.txt",)),
)


def main(arguments: "list[str]") -> int:
    """Write or check every lock file; return 0 if each pin says which requirements file names it."""
    parser = argparse.ArgumentParser(description="Update the lock files, with hashes.", allow_abbrev=False)
    parser.add_argument("--upgrade", metavar="PACKAGE", action="append", default=[], help="upgrade PACKAGE; repeatable")
    parser.add_argument(
        "--check", action="store_true", help="only check that each requirement is pinned and its pin names the file"
    )
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.upgrade)
    faults = [fault for lock in LOCKS for fault in unmarked(lock)]
    for fault in faults:
        environment.say(fault)
    return 1 if faults else 0


def write(upgrades: "Sequence[str]") -> None:
    """Write every lock file. Raises `SetupError` without uv, `CalledProcessError` if uv fails."""
    if shutil.which("uv") is None:
        raise environment.SetupError("uv is not on PATH. Run `pip install uv`, then run this again.")
    for lock in LOCKS:
        path = ROOT / lock.name
        text = path.read_text(encoding="utf-8")
        without = {name for other in lock.constraints for name in pins(read(other))} if lock.above else set()
        path.write_text(head(text) + kept(compiled(lock, text, upgrades), without), encoding="utf-8")
        environment.say(f"{lock.name}: {len(pins(read(lock.name)))} packages")


def unmarked(lock: Lock) -> "list[str]":
    """Return a message for each requirement whose pin does not name the requirements file."""
    own = dict(zip(pins(read(lock.name)), blocks(read(lock.name)), strict=True))
    elsewhere = (
        {name for other in (*lock.constraints, TORCH) for name in pins(read(other))} if lock.above else {"torch"}
    )
    faults = []
    for file in lock.inputs:
        for line in re.findall(r"(?m)^[A-Za-z0-9][\w.-]*", read(file)):
            name = re.sub(r"[-_.]+", "-", line).lower()
            reasons = own.get(name, "").partition("# via ")[2].strip().split(", ")
            if f"-r {file}" not in reasons and name not in elsewhere:
                faults.append(f"{lock.name}: {name} is not marked `via -r {file}`; run scripts/lock.py.")
    return faults


def compiled(lock: Lock, text: str, upgrades: "Sequence[str]") -> str:
    """Return uv's lock file for the inputs; pins in `text` are kept if possible."""
    command = [*COMMAND.split(), *lock.inputs, f"--constraint={TORCH}"]
    command += [f"--constraint={name}" for name in lock.constraints]
    command += [f"--upgrade-package={name}" for name in upgrades]
    draft = ROOT / (lock.name + ".new")
    draft.write_text(text, encoding="utf-8")
    try:
        subprocess.check_call([*command, f"--output-file={draft}"], cwd=str(ROOT), stdout=subprocess.DEVNULL)
        return draft.read_text(encoding="utf-8")
    finally:
        draft.unlink()


def read(name: str) -> str:
    """Return a file of the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


def head(text: str) -> str:
    """Return the comment that a lock file begins with."""
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:first])


def blocks(text: str) -> "list[str]":
    """Return each pin with its hashes and its reason."""
    return re.findall(r"^[A-Za-z0-9].*\n(?:[ ]+.*\n)*", text, re.MULTILINE)


def pins(text: str) -> "list[str]":
    """Return the names that a lock file pins."""
    return [block.partition("==")[0] for block in blocks(text)]


def kept(text: str, without: "set[str]") -> str:
    """Return the pins except those in `without`, those that come with torch and those for a browser."""
    return "".join(
        block
        for name, block in zip(pins(text), blocks(text), strict=True)
        if name not in without and not WITH_TORCH.fullmatch(name) and BROWSER not in block
    )


if __name__ == "__main__":
    sys.exit(environment.run_main(main))
