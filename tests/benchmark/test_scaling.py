"""The replica benchmark loads each number of replicas, kills one, and reports and plots the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.scaling import main
from commands import Command
from replica_room import needs_proxy


@needs_proxy
@pytest.mark.long
def test_two_replicas_are_loaded_and_one_is_lost(tiny: Path, tmp_path: Path, command: Command) -> None:
    output = tmp_path / "scaling.json"
    load = {"streams": 2, "rate": 4, "listeners": 1, "frames": 30, "seconds": 1, "ramp": 0.3, "listen": 1}

    code, _, told, _ = command(main, "--device cpu --replicas 2", checkpoint=tiny, output=output, **load)

    assert (code, told) == (0, json.loads(output.read_text(encoding="utf-8")))
    (two,) = told["outcomes"]
    assert (two["replicas"], two["listeners"], two["failed"], two["missed_pings"]) == (2, 2, 0, 0)
    assert 0 < two["lost"] <= 4
    assert min(two[name] for name in ("ready_s", "gb", "back_s")) > 0
    assert {"sound_s_a_second", "first_ms_p50", "first_ms_p95", "cores", "cores_proxy", "cores_client"} < two.keys()
