"""Runs a benchmark command as a shell would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from benchmark.command import run
from commands import Command, Ran, run_command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(main: Callable[[], int | None], words: str = "", **options: object) -> Ran:
        name, named = main.__module__.rpartition(".")[2], (f"--{name}={value}" for name, value in options.items())
        return run_command(monkeypatch, capsys, partial(run, main), [name, *words.split(), *named])

    return call
