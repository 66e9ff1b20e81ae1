"""Runs an s1_mini command in this process, as a shell would, and reads its output; the variables of subprocesses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from s1_mini.cli.app import app

# Variables for subprocesses, without the machine's own settings.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("S1_MINI_")}


class Ran(NamedTuple):
    """Result of a command: exit code, standard output without its last line, that line as JSON, and standard error."""

    code: int
    lines: list[str]
    facts: Any
    errors: str


Command = Callable[..., Ran]


def run_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    main: Callable[[], int],
    words: Sequence[object],
) -> Ran:
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    code, output = main(), capsys.readouterr()
    *lines, last = output.out.splitlines() or [""]
    return Ran(code, lines, json.loads(last) if last else None, output.err)


def invoke(*words: object, fails: bool = False) -> str:
    """Run `s1-mini` in this process and return its output; it succeeds or, with `fails`, does not."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert bool(result.exit_code) == fails, result.output
    return result.output
