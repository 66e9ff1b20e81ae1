"""Weights that a file stores in int8: `NAME` [N, …], and `NAME.scale` [N] with one number per row.

Such weights are dequantized one by one while they are loaded or converted. Quantizing them again gives the same bits,
so that an engine with `S1_MINI_WEIGHTS_DTYPE=int8` computes with exactly the values of the file.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.kernels.weight import quantize

SUFFIX = ".scale"
SCALE = torch.bfloat16


def is_int8(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a tensor is stored in int8."""
    return tensors[name].dtype == torch.int8 and name + SUFFIX in tensors


def without_scales(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return all tensors except the scales of int8 weights.

    Raises `CheckpointMismatchError`, naming `source`, for a scale whose shape or type does not fit its weights.
    """
    stored = sorted(name for name in tensors if is_int8(name, tensors))
    for name in stored:
        weights, scale = tensors[name], tensors[name + SUFFIX]
        if not weights.dim() or scale.shape != weights.shape[:1] or not scale.is_floating_point():
            raise CheckpointMismatchError(
                f"{source}: {name}{SUFFIX} {tuple(scale.shape)} must have one number per row of {name} "
                f"{tuple(weights.shape)}"
            )
    scales = {name + SUFFIX for name in stored}
    return {name: tensor for name, tensor in tensors.items() if name not in scales}


def dequantized(
    tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Return one tensor in `dtype` on `device`, dequantized if it is stored in int8."""
    weights = tensors[name].to(device)
    if is_int8(name, tensors):
        scale = tensors[name + SUFFIX].to(weights.device).float()
        weights = weights.float() * scale.view(-1, *[1] * (weights.dim() - 1))
    return weights.to(dtype)


def quantized(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize weights [N, …] to int8; return values of the same shape, and scales [N]."""
    int8 = quantize(weights.flatten(1), torch.int8)
    return int8.values.view(weights.shape), int8.scale
