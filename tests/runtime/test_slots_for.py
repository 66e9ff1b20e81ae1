"""The engine has the planned number of slots, and leaves memory for everything else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from s1_mini.capacity.cards import Gpu
from s1_mini.capacity.plan import PlanOptions, make_plans
from s1_mini.capacity.sizes import AUTO_SLOTS, CONTEXT_BYTES, GIB, DeviceMemory, Formats, sum_demands
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.families.registry import SHORT_NAMES, get_family
from s1_mini.runtime.loader import LoadedCheckpoint, check_weights, gpus_of, load
from s1_mini.runtime.sizing import CPU_SLOTS, measure_slots, prefix_bytes_of
from s1_mini.runtime.sizing import slots_for as slots_in
from s1_mini.types import Choice

PLENTY = 100 * GIB


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> LoadedCheckpoint:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu", precision="bfloat16"))


@pytest.fixture
def scarce(speaker: LoadedCheckpoint) -> float:
    """Free memory for 50 slots of 2,112 columns, including the tiny codec's working memory."""
    demand = sum_demands(speaker.sizes().with_prefix_cache(256_000_000).demands.values())
    return (demand.fixed + 50.5 * demand.slot(2112)) / 0.98


def config(**settings: object) -> EngineConfig:
    return EngineConfig(device="cpu", **settings)  # type: ignore[arg-type]


def slots_for(free_bytes: float, speaker: LoadedCheckpoint, config: EngineConfig) -> tuple[int, int]:
    """Slots of one device that has all stages."""
    sizes = speaker.sizes().with_prefix_cache(prefix_bytes_of(config))
    return slots_in([DeviceMemory(free_bytes, sizes.demand)], sizes, config)


@pytest.mark.parametrize("memory_mib", [2500, 16_000])
def test_the_engine_has_the_slots_that_were_planned(speaker: LoadedCheckpoint, memory_mib: int) -> None:
    card = Gpu("x", "X", memory_mib, 1000, 100, 10, (9, 0), has_bfloat16=True, has_fp8=True)
    (plan,) = make_plans(partial(get_family().sizes, speaker.directory), [card], PlanOptions(codec="float32"))

    assert slots_for(plan.free_bytes, speaker, config()) == (plan.slots, plan.columns)
    assert plan.free_bytes < card.memory_bytes - CONTEXT_BYTES
    assert 0 < plan.slots <= AUTO_SLOTS


@pytest.mark.parametrize("short", SHORT_NAMES)
def test_a_plan_and_a_loaded_checkpoint_agree_on_each_stage(short: str, tmp_path: Path) -> None:
    family = get_family(SHORT_NAMES[short])
    family.write_random(tmp_path / short, size="tiny", form="compact", seed=0)
    speaker = load(config(checkpoint_path=tmp_path / short))
    opened, planned = speaker.sizes(), family.sizes(tmp_path / short, Formats(4, 4, 4, 4))

    assert list(opened.demands) == list(family.stage_names) == list(planned.stages)
    assert opened.demands == planned.demands
    assert opened.max_positions == planned.max_positions == speaker.loaded.max_positions


def test_slots_fill_the_free_memory(speaker: LoadedCheckpoint, scarce: float) -> None:
    assert slots_for(scarce, speaker, config()) == (50, 2112)
    assert slots_for(PLENTY, speaker, config()) == (AUTO_SLOTS, speaker.loaded.model.max_positions)


def test_requested_slots_are_kept_if_memory_allows(speaker: LoadedCheckpoint, scarce: float) -> None:
    assert slots_for(PLENTY, speaker, config(max_batch_size=700)) == (700, speaker.loaded.model.max_positions)
    assert slots_for(scarce, speaker, config(max_batch_size=8)) == (8, speaker.loaded.model.max_positions)
    assert slots_for(scarce, speaker, config(enable_batching=False)) == (1, speaker.loaded.model.max_positions)
    assert slots_for(scarce, speaker, config(max_columns=2560))[1] == 2560
    assert slots_for(scarce, speaker, config(max_columns=512))[0] > 50


def test_a_larger_prefix_cache_and_longer_references_leave_fewer_slots(
    speaker: LoadedCheckpoint, scarce: float
) -> None:
    assert slots_for(scarce, speaker, config(prefix_cache_mb=270))[0] < 50
    assert slots_for(scarce, speaker, config(max_reference_s=10))[0] > 50


def test_memory_that_slots_leave_free_is_counted(speaker: LoadedCheckpoint) -> None:
    room = DeviceMemory(PLENTY, speaker.sizes().with_prefix_cache(256_000_000).demand)
    slots, positions = slots_for(PLENTY, speaker, config())

    left = room.left(slots, positions)

    assert 0 < left < PLENTY
    assert room.left(slots + 1, positions) == pytest.approx(left - room.demand.slot(positions), abs=2)
    assert DeviceMemory(GIB, room.demand).left(slots, positions) == 0


def test_too_little_memory_is_reported_with_the_requirement(speaker: LoadedCheckpoint) -> None:
    with pytest.raises(ConfigurationError, match="S1_MINI_KV_CACHE_GB"):
        slots_for(GIB, speaker, config())


def test_each_device_of_a_placement_needs_enough_memory(speaker: LoadedCheckpoint, scarce: float) -> None:
    model, codec = speaker.sizes().with_prefix_cache(256_000_000).demands.values()
    rooms = [DeviceMemory(scarce, model, "cuda:0"), DeviceMemory(PLENTY, codec, "cuda:1")]

    assert slots_in(rooms, speaker.sizes(), config())[0] > 50
    with pytest.raises(ConfigurationError, match=r"placement: cuda:1 has 0\.54 GB free after the weights"):
        slots_in([rooms[0], DeviceMemory(GIB / 2, codec, "cuda:1")], speaker.sizes(), config())


def test_an_engine_checks_every_gpu_of_its_stages(
    speaker: LoadedCheckpoint, scarce: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"cuda:0": PLENTY, "cuda:1": scarce, "cuda:2": GIB / 2}
    monkeypatch.setattr("s1_mini.runtime.sizing.free_bytes_of", free.__getitem__)
    apart = [
        replace(speaker, devices={"language_model": Choice("cuda:0", ""), "codec": Choice(codec, "")})
        for codec in ("cpu", "cuda:0", "cuda:1", "cuda:2")
    ]

    assert [measure_slots(each, config())[0] for each in apart[:3]] == [AUTO_SLOTS] * 3
    with pytest.raises(ConfigurationError, match="placement: cuda:2 has"):
        measure_slots(apart[3], config())


def test_weights_that_do_not_fit_are_reported_before_they_are_loaded() -> None:
    sizes = get_family().sizes(None, Formats())
    stages = gpus_of({"language_model": Choice("cuda:0", ""), "codec": Choice("cuda:1", "")})
    check_weights(sizes, stages, {"cuda:0": 2e9, "cuda:1": 1e9})

    with pytest.raises(
        ConfigurationError, match=r"of codec take 0\.37 GB, but cuda:1 has only 0\.20 GB free; cuda:0 has the most"
    ):
        check_weights(sizes, stages, {"cuda:0": 2e9, "cuda:1": 2e8})


def test_a_cpu_has_four_slots_by_default(speaker: LoadedCheckpoint) -> None:
    assert measure_slots(speaker, config()) == (CPU_SLOTS, speaker.loaded.model.max_positions, 256_000_000)
    assert measure_slots(speaker, config(max_batch_size=9))[0] == 9


def test_a_gigabyte_of_the_key_value_cache_has_a_billion_bytes(speaker: LoadedCheckpoint) -> None:
    slot_bytes = speaker.loaded.model.max_positions * speaker.loaded.model.position_bytes
    slots = 1 + int(1e9 // slot_bytes)

    assert int(2**30 // slot_bytes) >= slots
    assert measure_slots(speaker, config(kv_cache_gb=1, max_batch_size=slots))[0] == slots - 1
    assert measure_slots(speaker, config(kv_cache_gb=slots * slot_bytes / 1e9, max_batch_size=slots))[0] == slots
