"""The engine's slots are those that a plan foretells, and leave room for all else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from s1_mini.capacity.cards import Card
from s1_mini.capacity.memory import AUTO_SLOTS, CONTEXT_BYTES, GIB
from s1_mini.capacity.plan import Wish, make_plans
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.families.registry import get_family
from s1_mini.runtime.loader import Speaker, load
from s1_mini.runtime.sizing import CPU_SLOTS, measure_slots, slots_for

PLENTY = 100 * GIB


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> Speaker:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu", precision="bfloat16"))


@pytest.fixture
def scarce(speaker: Speaker) -> float:
    """So much free memory that there is room for 50 slots of 2,112 columns, the tiny codec's work included."""
    demand = speaker.loaded.demand(256_000_000)
    return (demand.fixed + 50.5 * demand.slot(2112)) / 0.98


def config(**settings: object) -> EngineConfig:
    return EngineConfig(device="cpu", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory_mib", [2500, 2600, 3000, 16_000])
def test_the_engine_has_the_slots_that_were_planned(speaker: Speaker, memory_mib: int) -> None:
    card = Card("x", "X", memory_mib, 1000, 100, 10, (9, 0), has_bfloat16=True, has_fp8=True)
    (plan,) = make_plans(partial(get_family().sizes, speaker.directory), [card], Wish(codec="float32"))

    assert slots_for(plan.free_bytes, speaker, config()) == (plan.slots, plan.columns)
    assert plan.free_bytes < card.memory_bytes - CONTEXT_BYTES
    assert 0 < plan.slots <= AUTO_SLOTS


def test_slots_are_as_many_as_there_is_room_for(speaker: Speaker, scarce: float) -> None:
    assert slots_for(scarce, speaker, config()) == (50, 2112)
    assert slots_for(PLENTY, speaker, config()) == (AUTO_SLOTS, speaker.loaded.model.max_columns)


def test_what_was_asked_for_is_kept_where_there_is_room(speaker: Speaker, scarce: float) -> None:
    assert slots_for(PLENTY, speaker, config(max_batch_size=700)) == (700, speaker.loaded.model.max_columns)
    assert slots_for(scarce, speaker, config(max_batch_size=8)) == (8, speaker.loaded.model.max_columns)
    assert slots_for(scarce, speaker, config(enable_batching=False)) == (1, speaker.loaded.model.max_columns)
    assert slots_for(scarce, speaker, config(max_columns=2560))[1] == 2560
    assert slots_for(scarce, speaker, config(max_columns=512))[0] > 50


def test_a_larger_prefix_cache_and_longer_references_leave_fewer_slots(speaker: Speaker, scarce: float) -> None:
    assert slots_for(scarce, speaker, config(prefix_cache_mb=270))[0] < 50
    assert slots_for(scarce, speaker, config(max_reference_s=10))[0] > 50


def test_too_little_memory_is_told_with_what_is_needed(speaker: Speaker) -> None:
    with pytest.raises(ConfigurationError, match="S1_MINI_KV_CACHE_GB"):
        slots_for(GIB, speaker, config())


def test_on_a_cpu_there_are_four_where_nothing_is_said(speaker: Speaker) -> None:
    assert measure_slots(speaker, config()) == (CPU_SLOTS, speaker.loaded.model.max_columns)
    assert measure_slots(speaker, config(max_batch_size=9))[0] == 9
