"""The GPU suite produces all published figures with one command; without a GPU it runs at reduced size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark import gpu_suite
from benchmark.frames import measure_frames
from benchmark.gpu_suite import FULL, SMALL, TARGETS, Parts, main
from commands import Command
from kernel_checks import on_gpu
from s1_mini.capacity.sizes import AUTO_SLOTS
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.runtime.loader import load

KEPT = Path(__file__).parents[2] / "docs" / "benchmarks" / "h200.json"
NEWER = ["same_alone", "same_cached", "same_torch", "cpu_ms"]  # than the saved report
TINIER = replace(SMALL, rows=(1, 2), frames=3, max_new_tokens=4, rate_s=1.0, saturated_s=0.5, most_streams=2)


def fields(data: dict[str, Any]) -> dict[str, Any]:
    """Names of all figures in the report, whether or not they were measured."""
    details = data["details"]
    figures = details["loads"]["idle"]
    return {
        "top": list(data),
        "workload": list(data["workload"]),
        "figures": [
            list(data["figures"][0])[:3],
            *[name for each in data["figures"] if (name := each["name"])[:6] != "frame_"],
        ],
        "details": list(details),
        "frames": list(details["frames"][0]),
        "agreement": {name: list(each) for name, each in details["agreement"].items()},
        "load": {name: list(each) for name, each in figures.items()},
        "streams": list(details["streams"][0]),
    }


@pytest.mark.long
def test_the_suite_runs_on_a_cpu_and_keeps_its_json(
    tiny: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_suite, "SMALL", TINIER)
    monkeypatch.setattr(gpu_suite, "STARTS", 1)
    kept = tmp_path / "suite.json"

    code, lines, data, _ = command(main, "--device cpu", checkpoint=tiny, output=kept)

    assert code == 0
    values = {figure["name"]: figure["value"] for figure in data["figures"]}
    assert json.loads(kept.read_text()) == data
    assert values.keys() == {"frame_1", "frame_2", *TARGETS.keys() - {"frame_1", "frame_64", "frame_128"}}
    assert all(value > 0 for name, value in values.items() if name not in {"underruns_busy", "streams"})
    assert all("must" not in figure for figure in data["figures"]), "targets are for what was measured in full"
    assert data["details"]["failures"] == {}
    assert {"machine", "commit", "torch", "workload", "slots", "seconds"} <= data.keys()
    assert any("4 slots" in row for row in lines)
    ours, kept_ones = fields(data), fields(json.loads(KEPT.read_text()))
    ours["figures"] = [each for each in ours["figures"] if each not in NEWER]
    ours["frames"] = [each for each in ours["frames"] if each not in NEWER]
    ours["agreement"] = {way: each for way, each in ours["agreement"].items() if way in kept_ones["agreement"]}
    assert ours == kept_ones, "as they were kept, to be compared"


@pytest.mark.parametrize(("can_hold", "tolerated"), [(0, 0), (1, 0), (100, 10), (1000, 100), (5000, 904)])
def test_the_most_streams_are_found_to_a_tenth(can_hold: int, tolerated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = object.__new__(Parts)
    parts._scale = FULL

    def listen(count: int) -> dict[str, Any]:
        return {"held": count <= can_hold}

    monkeypatch.setattr(parts, "_listen", listen)
    held, levels = parts.streams()

    assert can_hold - tolerated <= held <= can_hold
    assert len(levels) <= 14


@on_gpu
def test_on_a_gpu_frames_are_timed_as_replays_of_their_graphs(tiny: Path) -> None:
    loaded = load(EngineConfig(checkpoint_path=tiny, device="cuda")).loaded

    times = measure_frames(loaded, (1, 4), context=300, frames=20)

    assert [each.rows for each in times] == [1, 4]
    assert all(0 < each.device_ms <= 1.1 * each.step_ms for each in times)


@on_gpu
def test_on_a_gpu_slots_are_chosen_by_its_memory(tiny: Path) -> None:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cuda")) as engine:
        health = engine.health_check()

        assert health["slots"]["total"] == engine.num_slots == AUTO_SLOTS
        assert health["vram"]["used_gb"] < health["vram"]["total_gb"]
