"""Causal bricks of the codec. Each takes its input and the carry that holds what came before.

Parameter names are those of transformers' checkpoints with weight norm folded.
Shapes: B rows, C channels, T steps.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.encodec.carry import Whole
from s1_mini.layers.convolution import conv1d, conv_transpose1d


class Chain(nn.Module):
    """Layers one after another, all with the same carry."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, carry: Whole) -> Tensor:
        for layer in self.layers:
            x = layer(x, carry)
        return x


class CausalConv1d(nn.Module):
    """Convolution that sees only the past; T steps become T / stride, rounded up."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride=stride, dilation=dilation)
        self.context = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: Tensor, carry: Whole) -> Tensor:
        conv, stride = self.conv, self.conv.stride[0]
        x = carry.mirror(self, x, self.context, stride)
        return conv1d(x, conv.weight, conv.bias, stride=stride, dilation=conv.dilation[0], groups=1)


class CausalConvTranspose1d(nn.Module):
    """Transposed convolution of twice its stride that sees only the past: T steps become T * stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, 2 * stride, stride=stride)
        self.stride = stride

    def forward(self, x: Tensor, carry: Whole) -> Tensor:
        start, length = self.stride, x.shape[-1] * self.stride
        x = carry.extend(self, x, 1)
        carry.grow(self.stride)
        return conv_transpose1d(x, self.conv.weight, self.conv.bias, stride=self.stride)[..., start : start + length]


class Elu(nn.Module):
    """x above zero, exp(x) - 1 below (Clevert et al. 2015)."""

    def forward(self, x: Tensor, _carry: Whole) -> Tensor:
        return F.elu(x)


class ResidualUnit(nn.Module):
    """Two convolutions with fewer channels between them, the first dilated, around a skip."""

    def __init__(self, channels: int, kernel: int, dilation: int, *, compress: int, has_shortcut: bool) -> None:
        super().__init__()
        hidden = channels // compress
        first = CausalConv1d(channels, hidden, kernel, dilation=dilation)
        self.block = nn.ModuleList([Elu(), first, Elu(), CausalConv1d(hidden, channels, 1)])
        self.shortcut = CausalConv1d(channels, channels, 1) if has_shortcut else None

    def forward(self, x: Tensor, carry: Whole) -> Tensor:
        branch = x
        for layer in self.block:
            branch = layer(branch, carry)
        return (x if self.shortcut is None else self.shortcut(x, carry)) + branch


class Recurrence(nn.Module):
    """Layers of LSTM around a skip."""

    def __init__(self, channels: int, num_layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, channels, num_layers)

    def forward(self, x: Tensor, carry: Whole) -> Tensor:
        steps = x.permute(2, 0, 1).contiguous()
        return (carry.recur(self.lstm, steps) + steps).permute(1, 2, 0).contiguous()
