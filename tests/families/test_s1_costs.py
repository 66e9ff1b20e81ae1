"""What S1 costs is counted from its shapes."""

from __future__ import annotations

from pathlib import Path

from s1_mini.config import EngineConfig
from s1_mini.families.s1.costs import Costs
from s1_mini.families.s1.loaded import as_s1
from s1_mini.runtime.loader import load


def test_costs_are_those_of_the_checkpoint(tiny: Path) -> None:
    model = as_s1(load(EngineConfig(checkpoint_path=tiny, device="cpu")).loaded).model
    costs = Costs(model.network)

    assert costs.slow_step(1, 65).num_bytes - costs.slow_step(1, 64).num_bytes == model.column_bytes
    assert costs.slow_step(4, 64).operations == 4 * costs.slow_step(1, 64).operations
    assert costs.slow_step(1, 0).num_bytes < model.num_bytes
    assert costs.step(4, 64) == costs.slow_step(4, 64) + costs.fast_steps(4)
