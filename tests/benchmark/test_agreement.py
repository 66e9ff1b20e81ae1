"""Token agreement between execution modes: complete on a CPU, where all compute the same bits; partial otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.agreement import Agreement, NoiseRows, measure_agreement
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


@torch.inference_mode()
def test_teacher_forcing_follows_the_other_run_but_samples_its_own_tokens(model: S1Model, tiny: Path) -> None:
    noise = NoiseRows(context=40, frames=12)
    other = open_model(tiny)
    spoken = noise.speak(model, range(4))
    other.network.output.weight[::5] = 0.0  # every fifth semantic token gets the same logit

    followed = Agreement.between(spoken, noise.speak(other, range(4), along=spoken))
    free = Agreement.between(spoken, noise.speak(other, range(4)))

    assert free.main < followed.main < 1
    assert followed.codes == 1.0


def test_a_code_counts_where_those_before_it_are_the_same() -> None:
    ours = torch.zeros(1, 2, 5, dtype=torch.int64)
    theirs = ours.clone()
    theirs[0, 0, 2], theirs[0, 1, 4] = 1, 1  # the second code of one row, and the last code of the other

    assert Agreement.between(ours, theirs) == Agreement(1.0, 2 / 4, 2)
