"""The fleet simulation agrees with queueing theory where there is a closed formula."""

from __future__ import annotations

import pytest

from benchmark.fleet import main
from commands import Command


def test_the_command_reports_utilisation_and_the_bottleneck(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIMULATED": 100, "WARM_S": 3.0, "SEEN_S": 3.0, "LOADS": (0.4, 0.9)}.items():
        monkeypatch.setattr(f"benchmark.fleet.{name}", value)

    done = command(main, "--gpu t4 --engines 4 --price 1")

    assert done.code == 0
    (fleet,) = done.facts["fleets"]
    assert 0.4 <= fleet["by_chance"] <= fleet["by_least"] < 1
    assert fleet["hour_costs"] > 0
    assert all(each["engines"] > 0 for each in done.facts["shared"])
