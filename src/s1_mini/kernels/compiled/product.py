"""Weights in the layout of the compiled kernels: the weights of the outputs that are summed at once are contiguous."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK = 256  # outputs whose sums stay in the L1 cache


class Product(NamedTuple):
    """A linear layer with K inputs and N outputs in each of L blocks: x @ `weight` * `scale` + `bias`."""

    weight: np.ndarray  # [L, K N], block by block, inputs first; float32, int8, or uint16 with the bits of bfloat16
    scale: np.ndarray  # [L, N] float32
    bias: np.ndarray  # [L, N] float32
