"""Weights in the layout of the compiled kernels: inputs before outputs, so that many outputs are summed at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Product(NamedTuple):
    """A linear layer with K inputs and N outputs in each of L blocks: x @ `weight` * `scale` + `bias`."""

    weight: np.ndarray  # [L, K, N] float32, int8, or uint16 with the bits of bfloat16
    scale: np.ndarray  # [L, N] float32
    bias: np.ndarray  # [L, N] float32
