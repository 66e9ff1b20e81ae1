"""Token agreement between execution modes: complete on a CPU, where all compute the same bits; partial otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark.agreement import measure_agreement
from s1_mini.config import EngineConfig
from s1_mini.families.s1.model import S1Model
from s1_mini.runtime.graphs import StepGraphs
from s1_mini.runtime.loader import load


def open_model(directory: Path) -> S1Model:
    return load(EngineConfig(checkpoint_path=directory, device="cpu")).loaded.model


@pytest.fixture(scope="module")
def model(tiny: Path) -> S1Model:
    return open_model(tiny)


def test_every_mode_generates_the_same_on_a_cpu(model: S1Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, graph capture also generates frames."""
    prepare, captured = StepGraphs._prepare, []

    def capture(*given: Any) -> Any:
        graph = prepare(*given)
        for _ in range(2):  # to find the kernels to compile, and as a warm-up
            graph.replay()
        captured.append(graph)
        return graph

    monkeypatch.setattr(StepGraphs, "_prepare", capture)

    found = measure_agreement(model, rows=5, context=40, frames=6, alone=2)

    assert found == {
        "captured and eager": {"main": 1.0, "codes": 1.0, "frames": 30},
        "alone and in a batch": {"main": 1.0, "codes": 1.0, "frames": 12},
        "cached and computed prefix, in different batches": {"main": 1.0, "codes": 1.0, "frames": 12},
        "kernels and torch": {"main": 1.0, "codes": 1.0, "frames": 12},
    }
    assert captured
