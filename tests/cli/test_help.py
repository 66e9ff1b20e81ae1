"""Asking for help, the version or a completion costs next to nothing: what is heavy is loaded by who works with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"boto3", "botocore", "fastapi", "numpy", "pydantic", "rich", "safetensors", "soundfile", "torch", "uvicorn"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("S1_MINI_")}

# Asks every verb, however deep, for its help, and tells what is loaded after each.
ASK_ALL = """
import contextlib, io, json, sys
from typer.main import get_command
from s1_mini.cli.app import app, run

def paths(command, path):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths(inner, [*path, name])

loaded = {}
for path in paths(get_command(app), []):
    sys.argv = ["s1-mini", *path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert run() == 0
    assert "Usage: " in said.getvalue()
    loaded[" ".join(path)] = sorted(set(sys.modules))
print(json.dumps(loaded))
"""


def python(*arguments: str, **environment: str) -> str:
    command = [sys.executable, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT | environment, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_no_verb_loads_anything_heavy_to_tell_what_it_does() -> None:
    loaded = json.loads(python("-c", ASK_ALL))

    assert {"", "say", "package", "endpoint create", "voices add"} <= set(loaded)
    assert {verb: found for verb, modules in loaded.items() if (found := HEAVY & set(modules))} == {}


@pytest.mark.parametrize("asked", [["--version"], []])
def test_neither_the_version_nor_a_call_without_a_verb_loads_anything_heavy(asked: list[str]) -> None:
    code = f"import sys; sys.argv = ['s1-mini', *{asked}]; from s1_mini.cli.app import run; run(); print(*sys.modules)"

    assert not HEAVY & set(python("-c", code).split("\n")[-2].split())
