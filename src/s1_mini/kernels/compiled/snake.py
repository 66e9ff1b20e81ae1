"""Snake, x + sin²(αx) / α, in one pass: as `kernels/snake.py` has it, without what stands beside it there."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.layers import f32

NO_DIVISION_BY_ZERO = 1e-9


@in_order
def snake(x, alpha, out):
    """Put Snake of x [C, T] with `alpha` [C] into `out` [C, T]."""
    rounder = f32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number
    for channel in range(x.shape[0]):
        factor = alpha[channel]
        inverse = f32(1) / (factor + f32(NO_DIVISION_BY_ZERO))
        for step in range(x.shape[1]):
            value = x[channel, step]
            angle = factor * value
            turns = (angle * f32(0.3183098861837907) + rounder) - rounder  # half ones: the square has their period
            rest = angle - turns * f32(3.140625) - turns * f32(9.67502593994140625e-4) - turns * f32(1.5099579909e-7)
            square = rest * rest
            total = f32(2.7557319224e-6) - square * f32(2.5052108385e-8)
            total = f32(-1.9841269841e-4) + square * total
            total = f32(8.3333333333e-3) + square * total
            total = f32(-1.6666666667e-1) + square * total
            wave = rest + rest * square * total
            out[channel, step] = value + wave * wave * inverse


def compile_for(formats: Sequence[str]) -> None:  # noqa: ARG001 - there is one
    """Compile `snake`, and keep it."""
    both, alpha = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    snake.compile(tuple(numba.typeof(each) for each in (both, alpha, both)))
