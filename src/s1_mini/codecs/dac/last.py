"""How sound leaves the codec, channels last: the last convolution, to one channel, and its bound; and Snakes' α.

Shapes: B rows, P steps of past, T steps, C channels.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.dac.layers import Bound, CausalConv1d, Snake
from s1_mini.kernels.linear import linear


class LastConvolution:
    """A convolution to one channel, with its bias, and what bounds it: [B, P + T, C] to samples [B, T].

    Each step is read once, by all taps.
    """

    def __init__(self, layer: CausalConv1d, bound: Bound, rows: int) -> None:
        weight, bias = layer.conv.weight, layer.conv.bias
        assert bias is not None
        self.past = weight.new_zeros(rows, layer.context, weight.shape[1])
        self._taps = weight.shape[2]
        self._weight = F.pad(weight[0].t(), (0, 0, 0, -self._taps % 8)).contiguous()  # [taps, C]
        self._bias, self._bound = bias.float(), bound.bound

    def __call__(self, joined: Tensor) -> Tensor:
        parts = linear(joined, self._weight, None)  # [B, P + T, taps]: what each step adds to the steps that see it
        batch, length, width = parts.shape
        steps = length - self._taps + 1
        seen = parts.as_strided((batch, steps, self._taps), (length * width, width, width + 1))
        return self._bound(seen.sum(-1, dtype=torch.float32) + self._bias)


def alpha_of(snake: nn.Module) -> Tensor:
    """Give α of each channel [C]."""
    return cast(Snake, snake).alpha.flatten()
