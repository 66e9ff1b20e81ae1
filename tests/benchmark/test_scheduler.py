"""The cost of a scheduler step is measured without a model."""

from __future__ import annotations

from benchmark.scheduler import main
from commands import Command


def test_the_command_reports_each_number_of_rows(command: Command) -> None:
    done = command(main, "--rows 1,2 --turns 10")

    assert done.code == 0
    assert set(done.facts["scheduler_ms"]) == {"1", "2"}
    assert all(ms > 0 for ms in done.facts["scheduler_ms"].values())
