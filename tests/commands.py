"""Runs a command of ours in this process, as from a shell, and reads what it printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest


class Ran(NamedTuple):
    """What a command left: exit code, standard output but its last line, that line of JSON, and standard error."""

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
    code, told = main(), capsys.readouterr()
    *lines, last = told.out.splitlines() or [""]
    return Ran(code, lines, json.loads(last) if last else None, told.err)
