"""How many slots an engine has, and how many positions each slot has, from settings and free memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from s1_mini.capacity.sizes import (
    AUTO_SLOTS,
    PREFIX_CACHE_BYTES,
    SPAN,
    DeviceMemory,
    Sizes,
    fit_slots,
    sum_demands,
)
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.loader import LoadedCheckpoint, free_bytes_of, gpus_of
from s1_mini.text.split import PIECE_BYTES

CPU_KV_GB = 1.0  # default budget for keys and values on a CPU
CPU_SLOTS = 4  # default number of slots on a CPU; on a GPU, as many as fit, up to `AUTO_SLOTS`


class Allocation(NamedTuple):
    """What an engine keeps in memory besides the weights."""

    slots: int
    positions: int  # per slot
    prefix_bytes: int  # maximum size of the prefix cache


def measure_slots(speaker: LoadedCheckpoint, config: EngineConfig) -> Allocation:
    """Choose the number of slots, their positions and the size of the prefix cache, by settings and free memory.

    Raises `ConfigurationError` if there is not enough memory for one slot.
    """
    prefix_bytes = prefix_bytes_of(config)
    model, stages = speaker.loaded, gpus_of(speaker.devices)
    first = next(iter(speaker.devices.values())).value  # the stage with a KV cache
    on_gpu = bool(stages) and first not in ("cpu", "mps")
    if on_gpu and config.kv_cache_gb is None:
        sizes = speaker.sizes().with_prefix_cache(prefix_bytes)
        rooms = [
            DeviceMemory(free_bytes_of(device), sum_demands(sizes.demands[stage] for stage in names), device)
            for device, names in stages.items()
        ]
        slots, positions = slots_for(rooms, sizes, config)
        if config.prefix_cache_mb is None:  # `rooms[0]` is the first stage's device; the cache is there too
            prefix_bytes += rooms[0].left(slots, positions) // 2
        return Allocation(slots, positions, prefix_bytes)
    budget = (config.kv_cache_gb or CPU_KV_GB) * 1e9
    positions = min(model.max_positions, config.max_columns or model.max_positions)
    slots = _requested_slots(config, AUTO_SLOTS if on_gpu else CPU_SLOTS)
    slots = min(slots, int(budget // (positions * model.position_bytes)))
    if slots < 1:
        slots, positions = 1, int(budget // model.position_bytes) // SPAN * SPAN
        _check_positions(positions, budget, model.position_bytes)
    return Allocation(slots, positions, prefix_bytes)


def prefix_bytes_of(config: EngineConfig) -> int:
    """Return the configured size of the prefix cache, or the smallest automatic size if the setting is unset."""
    return PREFIX_CACHE_BYTES if config.prefix_cache_mb is None else round(1e6 * config.prefix_cache_mb)


def slots_for(rooms: Sequence[DeviceMemory], sizes: Sizes, config: EngineConfig) -> tuple[int, int]:
    """Return the numbers of slots and positions that fit besides the weights, by the rules of `s1-mini plan`.

    `rooms` are the devices with stages. Raises `ConfigurationError` if a device has not enough memory for one slot.
    """
    most = min(sizes.max_positions, config.max_columns or sizes.max_positions)
    piece_bytes = config.chunk_length or PIECE_BYTES
    slots, positions = fit_slots(
        rooms,
        requested=_requested_slots(config, AUTO_SLOTS),
        positions=most,
        needed=most if config.max_columns else sizes.needed_positions(config.max_reference_s, piece_bytes),
    )
    tight = min(rooms, key=lambda room: room.count(SPAN))
    if len(rooms) > 1 and tight.count(SPAN) < 1:
        raise ConfigurationError(
            f"placement: {tight.name} has {tight.free_bytes / 1e9:.2f} GB free after the weights, but its stages "
            f"need {(tight.demand.fixed + tight.demand.slot(SPAN)) / 1e9:.2f} GB for one slot; "
            "`s1-mini plan --placement` computes what fits"
        )
    _check_positions(positions, max(0.0, tight.free_bytes - tight.demand.fixed), tight.demand.position)
    return slots, positions


def _requested_slots(config: EngineConfig, default: int) -> int:
    return (config.max_batch_size or default) if config.enable_batching else 1


def _check_positions(positions: int, budget: float, position_bytes: int) -> None:
    if positions < SPAN:
        raise ConfigurationError(
            f"the key-value cache of {budget / 1e9:.2f} GB has room for only {positions} positions of this checkpoint; "
            f"it needs at least {SPAN}, which take {position_bytes * SPAN / 1e6:.1f} MB. Raise S1_MINI_KV_CACHE_GB, or "
            "free memory on the device."
        )
