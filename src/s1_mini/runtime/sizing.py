"""Slots and positions that fit the free memory, and whether the weights of a placement do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from s1_mini.capacity.sizes import AUTO_SLOTS, GIB, SPAN, Room, Sizes, fit_slots
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.types import Choice

CPU_KV_GB = 1.0  # default budget for keys and values on a CPU
CPU_SLOTS = 4  # default on a CPU; on a GPU as many as fit, up to `AUTO_SLOTS`


def slots_for(rooms: Sequence[Room], sizes: Sizes, config: EngineConfig) -> tuple[int, int]:
    """Return slots and their positions for the memory that is free beside the weights, as `s1-mini plan` does.

    `rooms` are the devices that have stages. Raises `ConfigurationError` if one of them has no room for one slot.
    """
    most = min(sizes.max_positions, config.max_columns or sizes.max_positions)
    slots, positions = fit_slots(
        rooms,
        wanted=_slots_wanted(config, AUTO_SLOTS),
        positions=most,
        needed=most if config.max_columns else sizes.needed_positions(config.max_reference_s, config.chunk_length),
        span=SPAN,
    )
    tight = min(rooms, key=lambda room: room.count(SPAN))
    if len(rooms) > 1 and tight.count(SPAN) < 1:
        raise ConfigurationError(
            f"placement: {tight.name} has {tight.free_bytes / GIB:.2f} GB beside the weights, and its stages need "
            f"{(tight.demand.fixed + tight.demand.slot(SPAN)) / GIB:.2f} for one slot; `s1-mini plan --placement` "
            "computes what fits"
        )
    _check_positions(positions, max(0.0, tight.free_bytes - tight.demand.fixed), tight.demand.position)
    return slots, positions


def slots_of_budget(position_bytes: int, max_positions: int, config: EngineConfig, *, on_gpu: bool) -> tuple[int, int]:
    """Return slots and their positions for the budget of the settings, or the default of a CPU. Raises as above."""
    budget = (config.kv_cache_gb or CPU_KV_GB) * GIB
    positions = min(max_positions, config.max_columns or max_positions)
    slots = min(_slots_wanted(config, AUTO_SLOTS if on_gpu else CPU_SLOTS), int(budget // (positions * position_bytes)))
    if slots < 1:
        slots, positions = 1, int(budget // position_bytes) // SPAN * SPAN
        _check_positions(positions, budget, position_bytes)
    return slots, positions


def _slots_wanted(config: EngineConfig, default: int) -> int:
    return (config.max_batch_size or default) if config.enable_batching else 1


def _check_positions(positions: int, budget: float, position_bytes: int) -> None:
    if positions < SPAN:
        raise ConfigurationError(
            f"{budget / GIB:.2f} GB of memory for keys and values hold {positions} positions of this checkpoint; "
            f"it needs at least {position_bytes * SPAN / 1e6:.1f} MB (S1_MINI_KV_CACHE_GB)"
        )


def gpus_of(devices: Mapping[str, Choice]) -> dict[str, list[str]]:
    """Return the stages of each GPU; `cuda` counts as the current one."""
    stages: dict[str, list[str]] = {}
    for stage, device in devices.items():
        if device.value.startswith("cuda"):
            index = device.value.partition(":")[2] or torch.cuda.current_device()
            stages.setdefault(f"cuda:{index}", []).append(stage)
    return stages


def free_bytes_of(device: str) -> int:
    """Return the free bytes of a GPU, including unused memory of torch's allocator."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def check_weights(sizes: Sizes, stages: Mapping[str, list[str]], free_bytes: Mapping[str, float]) -> None:
    """Check that the weights of the `stages` of each GPU fit, before any is loaded. Raises `ConfigurationError`."""
    for device, names in stages.items():
        needed = sum(sizes.stages[name].weight_bytes for name in names)
        if needed > free_bytes[device]:
            best = max(free_bytes, key=lambda name: free_bytes[name])
            raise ConfigurationError(
                f"placement: the weights of {', '.join(names)} take {needed / GIB:.2f} GB, and {device} has "
                f"{free_bytes[device] / GIB:.2f} free; most is free on {best} ({free_bytes[best] / GIB:.2f} GB). "
                "`s1-mini plan --placement` computes what fits"
            )
