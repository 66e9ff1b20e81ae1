"""A benchmark tells machine, commit and workload, a table, then one line of JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from s1_mini.bench.measure import measure_scheduler
from s1_mini.bench.workload import make_workload
from s1_mini.cli.app import app


def test_the_same_seed_asks_the_same() -> None:
    assert make_workload(5, 1, 10) == make_workload(5, 1, 10) != make_workload(5, 2, 10)


def test_a_turn_can_be_measured_without_a_device() -> None:
    assert 0 < measure_scheduler(4, 10) < 1000


def test_the_command_prints_a_table_and_a_line_of_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--checkpoint", tiny, "--device", "cpu", "--requests", "4", "--concurrency", "2"]
    more = ["--max-new-tokens", "6", "--baseline", "sequential", "--scheduler"]
    app(["bench", *map(str, options), *more], standalone_mode=False)

    *table, line = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert [load["name"] for load in facts["loads"]] == ["sequential, 1 slot", "idle, one at a time", "2 at a time"]
    assert [load["failed"] for load in facts["loads"]] == [0, 0, 0]
    assert {"speed_up", "first_p95_ratio", "scheduler_ms"} <= facts.keys()
    assert any("2 at a time" in row for row in table)
