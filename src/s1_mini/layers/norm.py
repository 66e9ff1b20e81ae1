"""Root-mean-square norms (Zhang & Sennrich 2019), in two roundings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from s1_mini.kernels.backend import runs_triton
from s1_mini.kernels.norm import Norm, add_norm, rms_norm


class RMSNorm(nn.Module):
    """Normalise the last axis in fp32, round to the input's dtype, then multiply by the weight.

    `round_last` multiplies in fp32 and rounds once at the end. In bf16 the two orders are not bit-equal.
    """

    def __init__(self, dim: int, eps: float, *, round_last: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps
        self.round_last = round_last

    @property
    def spec(self) -> Norm:
        """What kernels need to know of it; not for `round_last`."""
        return Norm(self.weight, self.eps)

    def forward(self, x: Tensor) -> Tensor:
        if runs_triton(x) and not self.round_last and not torch.is_grad_enabled():
            return add_norm(x, None, self.spec)[1]
        return rms_norm(x, self.weight, self.eps, round_last=self.round_last)
