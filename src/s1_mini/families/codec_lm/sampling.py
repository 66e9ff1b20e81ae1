"""Sampling parameters of a codec language model's rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SamplingTensors(NamedTuple):
    """Sampling parameters of B rows, on the device."""

    temperature: Tensor  # [B]
    top_p: Tensor  # [B]
    repetition_penalty: Tensor  # [B]
    uniforms: Tensor  # [B, frames, K] in [0, 1)
