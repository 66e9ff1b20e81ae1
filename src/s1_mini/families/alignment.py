"""Reads, in a checkpoint's `config.json`, which attention head follows the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from s1_mini.alignment.head import MAX_SHIFT_MS, AlignmentHead
from s1_mini.layers.json_config import invalid, read_number, read_size

KEY = "alignment"  # key in config.json


def read_head(values: Mapping[str, Any], num_layers: int, num_heads: int) -> AlignmentHead | None:
    """Read the head that `config.json` names, or return None.

    `pause_shift_ms` defaults to `shift_ms`, and `end_shift_ms` to `pause_shift_ms`. The layer must be below
    `num_layers`, the head below `num_heads`. Raises `CheckpointMismatchError`.
    """
    value = values.get(KEY)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise invalid(f"config.json: {KEY}", value, "an object with layer, head and shift_ms")

    def shift(key: str, default: Any) -> float:
        name = f"config.json: {KEY}.{key}"
        return read_number(
            name,
            value.get(key, default),
            lambda ms: abs(ms) <= MAX_SHIFT_MS,
            f"a number of ms, at most ±{MAX_SHIFT_MS}",
        )

    return AlignmentHead(
        layer=read_size(f"config.json: {KEY}.layer", value.get("layer"), num_layers - 1, least=0),
        head=read_size(f"config.json: {KEY}.head", value.get("head"), num_heads - 1, least=0),
        shift_ms=shift("shift_ms", None),
        pause_shift_ms=shift("pause_shift_ms", value.get("shift_ms")),
        end_shift_ms=shift("end_shift_ms", value.get("pause_shift_ms", value.get("shift_ms"))),
    )
