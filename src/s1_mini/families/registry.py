"""Which family a checkpoint belongs to, by its `config.json`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.s1.weights import open_s1

FAMILIES = {"dual_ar": open_s1}


def find_family(config: Mapping[str, Any]) -> Any:
    """Give the function that opens checkpoints of this family. Raises `CheckpointMismatchError` for a foreign one."""
    name = config.get("model_type", "dual_ar")
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointMismatchError(
            f"config.json: model_type={reprlib.repr(name)} is no family of this engine ({', '.join(FAMILIES)})"
        )
    return FAMILIES[name]
