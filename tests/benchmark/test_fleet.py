"""The fleet simulation agrees with queueing theory where there is a closed formula."""

from __future__ import annotations

import math

import pytest

from benchmark.fleet import Engine, by_least, main, simulate
from commands import Command


@pytest.mark.parametrize(("slots", "load"), [(1, 0.5), (10, 0.8)])
def test_requests_wait_as_often_as_erlang_computed(slots: int, load: float) -> None:
    engine = Engine(slots, first_s=0.04, full_s=0.04, frame_s=0.04, sound_s=2.0)
    busy = load * slots
    queued = busy**slots / math.factorial(slots) / (1 - load)
    formula = queued / (sum(busy**count / math.factorial(count) for count in range(slots)) + queued)

    late, taken = simulate(engine, 1, load, by_least)

    assert late == pytest.approx(formula, rel=0.1)
    assert taken == pytest.approx(load, rel=0.05)


def test_the_command_reports_utilisation_and_the_bottleneck(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIMULATED": 100, "WARM_S": 3.0, "SEEN_S": 3.0, "LOADS": (0.4, 0.9)}.items():
        monkeypatch.setattr(f"benchmark.fleet.{name}", value)

    done = command(main, "--gpu t4 --engines 4 --price 1")

    assert done.code == 0
    (fleet,) = done.facts["fleets"]
    assert 0.4 <= fleet["by_chance"] <= fleet["by_least"] < 1
    assert fleet["hour_costs"] > 0
    assert all(each["engines"] > 0 for each in done.facts["shared"])
