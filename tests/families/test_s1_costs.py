"""What S1 costs is counted from its shapes."""

from __future__ import annotations

from pathlib import Path

from s1_mini.config import EngineConfig
from s1_mini.families.s1.loaded import as_s1
from s1_mini.runtime.loader import load


def test_costs_are_those_of_the_checkpoint(tiny: Path) -> None:
    speaker = load(EngineConfig(checkpoint_path=tiny, device="cpu"))
    model = as_s1(speaker.loaded).model
    step = speaker.sizes(0).stages["language_model"].step

    assert step(1, 65).num_bytes - step(1, 64).num_bytes == model.column_bytes
    assert step(4, 64).operations == 4 * step(1, 64).operations
    weights = 2 * step(1, 0).num_bytes - step(2, 0).num_bytes
    passes = model.num_codebooks - 1
    assert weights < model.num_bytes + (passes - 1) * sum(p.nbytes for p in model.network.fast_layers.parameters())
