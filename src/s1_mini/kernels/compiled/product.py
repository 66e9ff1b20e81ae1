"""Weights in the layout of compiled kernels: inputs first, so that many outputs are summed at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Product(NamedTuple):
    """Weights of one linear layer in L blocks, N outputs of K inputs: `weight` * `scale`, then `bias`."""

    weight: np.ndarray  # [L, K, N] float32, int8, or uint16 that holds bfloat16
    scale: np.ndarray  # [L, N] float32
    bias: np.ndarray  # [L, N] float32
