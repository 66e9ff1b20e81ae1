"""Rotary position embedding over interleaved pairs (x0, x1), (x2, x3), … (Su et al. 2021, GPT-J's layout)."""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.rope import turn


def rope_table(
    length: int,
    head_dim: int,
    base: float,
    device: torch.device | str = "cpu",
    *,
    rounded_to: torch.dtype = torch.float32,
) -> Tensor:
    """Return cos and sin of every position and pair, rounded, held as fp32: [length, head_dim / 2, 2]."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32)[: head_dim // 2]
    angles = torch.outer(torch.arange(length, dtype=torch.float32), 1.0 / (base ** (pairs / head_dim)))
    table = torch.stack((angles.cos(), angles.sin()), dim=-1)
    return table.to(rounded_to).to(device=device, dtype=torch.float32)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the pairs of x [B, H, T, D] by `rope`, rows of a table [B or 1, T, D / 2, 2]; fp32 inside."""
    return turn(x, rope.unsqueeze(1))
