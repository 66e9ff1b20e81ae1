"""Free memory of the GPUs of a placement, and whether the weights of its stages fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from s1_mini.capacity.sizes import GIB, Sizes
from s1_mini.exceptions import ConfigurationError


def gpus_of(devices: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the stages of each GPU; `cuda` counts as the current one."""
    stages: dict[str, list[str]] = {}
    for stage, name in devices.items():
        if name.startswith("cuda"):
            index = name.partition(":")[2] or torch.cuda.current_device()
            stages.setdefault(f"cuda:{index}", []).append(stage)
    return stages


def free_bytes_of(device: str) -> int:
    """Return the free bytes of a GPU, including unused memory of torch's allocator."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def check_weights(sizes: Sizes, stages: Mapping[str, list[str]], free_bytes: Mapping[str, float]) -> None:
    """Check that the weights of the `stages` of each GPU fit, before any is loaded.

    Raises `ConfigurationError`.
    """
    for device, names in stages.items():
        needed = sum(sizes.stages[name].weight_bytes for name in names)
        if needed > free_bytes[device]:
            best = max(free_bytes, key=lambda name: free_bytes[name])
            raise ConfigurationError(
                f"placement: the weights of {', '.join(names)} take {needed / GIB:.2f} GB, and {device} has "
                f"{free_bytes[device] / GIB:.2f} free; most is free on {best} ({free_bytes[best] / GIB:.2f} GB). "
                "`s1-mini plan --placement` computes what fits"
            )
