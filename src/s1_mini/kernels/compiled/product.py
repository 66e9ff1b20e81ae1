"""Weights in the layout of the compiled kernels: the weights of the outputs that are summed at once are contiguous."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK = 64  # outputs whose sums are computed at once
GROUP = 32  # inputs of a tap that `int16.py` sums as integers
LARGEST_STEP, LARGEST_SUM = 2**15 - 1, 2**16 - 1  # an input, and the sum of GROUP weights; their product is below 2^31


class Product(NamedTuple):
    """A linear layer with K inputs and N outputs in each of L blocks: x @ `weight` * `scale` + `bias`."""

    # [L, K N], block by block, inputs first, with N padded to whole blocks; uint16 has the bits of bfloat16
    weight: np.ndarray
    scale: np.ndarray  # [L, N] float32
    bias: np.ndarray  # [L, N] float32


class Int16Product(NamedTuple):
    """A convolution with K inputs and N outputs for `kernels/compiled/int16.py`: x * `gain` @ `weight` * `scale`.

    K is the number of taps times the number of channels C, which is even.
    """

    # [K N], block by block, pairs of inputs first, with N padded to whole blocks; int8 or int16
    weight: np.ndarray
    scale: np.ndarray  # [N] float32
    bias: np.ndarray  # [N] float32
    gain: np.ndarray  # [C] float32
