"""Weights as compiled kernels read them: inputs first, so that sums of many outputs grow side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Product(NamedTuple):
    """Weights of the same product of L layers, N outputs of K inputs: `weight` * `scale`, then `bias`."""

    weight: np.ndarray  # [L, K, N] float32, int8, or uint16 that holds bfloat16
    scale: np.ndarray  # [L, N] float32
    bias: np.ndarray  # [L, N] float32
