"""Weights in the layout of the compiled kernels: the weights of the outputs that are summed at once are contiguous."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK = 64  # outputs whose sums are computed at once


class Product(NamedTuple):
    """A linear layer with K inputs and N outputs in each of L blocks: x @ `weight` * `scale` + `bias`."""

    # [L, K N], block by block, inputs first, with N padded to whole blocks; uint16 has the bits of bfloat16
    weight: np.ndarray
    scale: np.ndarray  # [L, N] float32
    bias: np.ndarray  # [L, N] float32
