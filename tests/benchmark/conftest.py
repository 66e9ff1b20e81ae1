"""What tests of the benchmarks share: one command of them, run as from a shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from benchmark.command import run


class Ran(NamedTuple):
    """What a command left: exit code, standard output but its last line, that line of JSON, and standard error."""

    code: int
    lines: list[str]
    facts: Any
    errors: str


Command = Callable[..., Ran]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(main: Callable[[], int | None], words: str = "", **options: object) -> Ran:
        named = (f"--{name}={value}" for name, value in options.items())
        monkeypatch.setattr(sys, "argv", [main.__module__.rpartition(".")[2], *words.split(), *named])
        code, told = run(main), capsys.readouterr()
        *lines, last = told.out.splitlines() or [""]
        return Ran(code, lines, json.loads(last) if last else None, told.err)

    return call
