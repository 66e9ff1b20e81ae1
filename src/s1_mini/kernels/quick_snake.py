"""Snake, x + sin²(αx) / α, in fewer operations than `kernels/snake.py`, for results that are rounded to 16 bits.

sin² has the period π: the angle is taken in turns of π, brought to ±½ and put into a series of its square, whose
relative error is 1e-6. What depends on the channel alone is looked up. Shapes: C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit

if HAS_TRITON:
    import triton.language as tl

NO_DIVISION_BY_ZERO = 1e-9  # as in `kernels/snake.py`


def snake_table(alpha: Tensor) -> Tensor:
    """Return α / π and 1 / α of each channel, [2, C] fp32, of `alpha` [C]."""
    wide = alpha.double()
    return torch.stack((wide / torch.pi, 1 / (wide + NO_DIVISION_BY_ZERO))).float()


def snake_of_table(value: Tensor, table: Tensor) -> Tensor:
    """Return Snake of values [..., C] in fp32."""
    wide = value.float()
    return wide + (torch.pi * table[0] * wide).sin().square() * table[1]


@jit
def quick_snake(value, turn, inverse):
    """Return value + sin²(π · turn · value) · inverse, all fp32."""
    turns = turn * value
    # Adding and taking away 1.5 · 2²³ leaves the nearest whole number.
    rest = turns - ((turns + 12582912.0) - 12582912.0)
    square = rest * rest
    series = 42.67865753173828 + square * (10.860807418823242 * square - 29.595741271972656)
    series = 9.86959457397461 + square * (series * square - 32.467994689941406)
    return value + (square * series) * inverse


@jit
def quick_snake_of(value, table, channel, channels, inside):
    """Return Snake of values [T, N] of the channels [N], those `inside` [N]; `table` is `snake_table`'s."""
    turn = tl.load(table + channel, mask=inside, other=0.0)
    inverse = tl.load(table + channels + channel, mask=inside, other=0.0)
    return quick_snake(value, turn[None, :], inverse[None, :])
