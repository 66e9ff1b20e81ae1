"""How many utterances an engine speaks at once, and how many positions each may have: by settings and memory."""

from __future__ import annotations

import torch

from s1_mini.capacity.memory import AUTO_SLOTS, SPAN, fit_slots
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.loader import Speaker

GB = 2**30
CPU_KV_GB = 1.0  # where nothing is said about it
CPU_SLOTS = 4  # likewise; on a GPU as many as there is room for, up to `AUTO_SLOTS`


def measure_slots(speaker: Speaker, config: EngineConfig) -> tuple[int, int]:
    """Choose how many pieces are spoken at once and how many columns each may have, by settings and memory.

    Raises `ConfigurationError` if the memory does not suffice for one.
    """
    model, device = speaker.loaded, torch.device(speaker.device.value)
    on_gpu = device.type == "cuda"
    if on_gpu and config.kv_cache_gb is None:
        free = torch.cuda.mem_get_info(device)[0]
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return slots_for(free + unused, speaker, config)
    wanted = (config.max_batch_size or (AUTO_SLOTS if on_gpu else CPU_SLOTS)) if config.enable_batching else 1
    budget = (config.kv_cache_gb or CPU_KV_GB) * GB
    columns = min(model.max_positions, config.max_columns or model.max_positions)
    slots = min(wanted, int(budget // (columns * model.position_bytes)))
    if slots >= 1:
        return slots, columns
    columns = int(budget // model.position_bytes) // SPAN * SPAN
    return 1, _enough(columns, budget, model.position_bytes)


def slots_for(free_bytes: float, speaker: Speaker, config: EngineConfig) -> tuple[int, int]:
    """Choose slots and columns for the memory that is free beside the weights, leaving room for all else.

    This is what `s1-mini plan` foretells. Raises `ConfigurationError` if it does not suffice for one slot.
    """
    model = speaker.loaded
    columns = min(model.max_positions, config.max_columns or model.max_positions)
    needed = model.needed_positions(config.max_reference_s, config.chunk_length)
    demand = model.demand(round(1e6 * config.prefix_cache_mb))
    slots, columns = fit_slots(
        free_bytes,
        demand,
        wanted=(config.max_batch_size or AUTO_SLOTS) if config.enable_batching else 1,
        positions=columns,
        needed=columns if config.max_columns else needed,
        span=SPAN,
    )
    return slots, _enough(columns, max(0.0, free_bytes - demand.fixed), demand.position)


def _enough(columns: int, budget: float, column_bytes: int) -> int:
    if columns < SPAN:
        raise ConfigurationError(
            f"{budget / GB:.2f} GB of memory for keys and values hold {columns} columns of this checkpoint; "
            f"it needs {column_bytes * SPAN / 1e6:.1f} MB at the least (S1_MINI_KV_CACHE_GB)"
        )
    return columns
