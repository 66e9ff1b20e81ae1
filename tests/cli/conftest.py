"""Runs the command line in the test process, which has already loaded torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from s1_mini.cli.app import run


class Result(NamedTuple):
    """Output and exit code of a command."""

    code: int
    out: str
    err: str


Call = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def call_here(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["s1-mini", *map(str, arguments)])
        code = run()
        return Result(code, *capsys.readouterr())

    return call_here
