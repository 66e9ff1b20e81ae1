"""The decoding half of a loaded codec as a GPU likes it: channels last, few kernels, the past of all rows in place.

The same sums as `Dac.push` in another order. A pointwise or transposed convolution is one matrix product; the others
are cuDNN's without a change of layout; what lies between two of them is one pass (`kernels/snake.py`).
Shapes: B rows, T steps, C channels, O outputs.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.carry import Carry, CarryRows
from s1_mini.codecs.dac.layers import CausalConv1d, CausalConvTranspose1d, ResidualUnit, Snake
from s1_mini.codecs.dac.model import Dac, DecoderBlock
from s1_mini.codecs.dac.window_rows import WindowRows
from s1_mini.kernels.snake import Rows, snake_extend


class ChannelsLastDecoder:
    """Streams of `rows` rows of one codec, whose decoding weights it lays out anew."""

    def __init__(self, codec: Dac, rows: int) -> None:
        self._codec, self._rows = codec, rows
        self._carry = Carry()  # of the upsampling
        self._post = WindowRows(codec.quantizer.post_module, rows)
        first, *blocks, last_snake, last, _ = codec.decoder.model
        self._first = _Convolution(cast(CausalConv1d, first), rows)
        self._blocks = [_Block(cast(DecoderBlock, block), rows) for block in blocks]
        self._last_alpha = _alpha(last_snake)
        self._last = _LastConvolution(cast(CausalConv1d, last), rows)

    def push_where(self, codes: Tensor, chosen: Tensor, fresh: Tensor) -> Tensor:
        """Decode the next frames [n, K, F] of the rows `chosen` [n], those that are `fresh` [n] from their beginning.

        Gives samples [n, T]. All of it lies on the device. Nothing is checked, no length counted.
        """
        quantizer = self._codec.quantizer
        carry = CarryRows(self._carry, self._rows, chosen, codes.device, fresh)
        row_choice = Rows(chosen, fresh)
        x = self._post(quantizer.decode(codes).transpose(1, 2).contiguous(), row_choice)
        x = quantizer.upsample(x.transpose(1, 2), carry)
        return self._synthesise(x.transpose(1, 2).contiguous(), row_choice)

    def _synthesise(self, x: Tensor, rows: Rows) -> Tensor:
        # What a convolution gives is `branch`; its bias and the skip around it are added where they are next read.
        _, joined = snake_extend(x, None, self._first.past, rows)
        branch, bias, skip = self._first(joined), self._first.bias, None
        for block in self._blocks:
            branch, bias, skip = block(branch, bias, skip, rows)
        _, joined = snake_extend(branch, self._last_alpha, self._last.past, rows, bias=bias, skip=skip)
        return self._last(joined).tanh()


class _Convolution:
    """A dilated convolution without its bias: [B, P + T, C] to [B, T, O]."""

    def __init__(self, layer: CausalConv1d, rows: int) -> None:
        weight = layer.conv.weight
        self.past = weight.new_zeros(rows, layer.context, weight.shape[1])
        self.bias = layer.conv.bias
        self._dilation = layer.conv.dilation[0]
        self._weight = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)

    def __call__(self, joined: Tensor) -> Tensor:
        image = joined.transpose(1, 2).unsqueeze(2)  # [B, C, 1, P + T], channels last
        out = F.conv2d(image, self._weight, dilation=(1, self._dilation))
        return out.squeeze(2).transpose(1, 2).contiguous()


class _LastConvolution:
    """A convolution to one channel, with its bias: [B, P + T, C] to [B, T]. Each step is read once, by all taps."""

    def __init__(self, layer: CausalConv1d, rows: int) -> None:
        weight, bias = layer.conv.weight, layer.conv.bias
        assert bias is not None
        self.past = weight.new_zeros(rows, layer.context, weight.shape[1])
        self._taps = weight.shape[2]
        self._weight = F.pad(weight[0].t(), (0, 0, 0, -self._taps % 8)).contiguous()  # [taps, C]
        self._bias = bias.float()

    def __call__(self, joined: Tensor) -> Tensor:
        parts = F.linear(joined, self._weight)  # [B, P + T, taps]: what each step adds to the steps that see it
        batch, length, width = parts.shape
        steps = length - self._taps + 1
        seen = parts.as_strided((batch, steps, self._taps), (length * width, width, width + 1))
        return seen.sum(-1, dtype=torch.float32) + self._bias


class _Block:
    """A transposed convolution, then residual units; takes and gives what is still to be added."""

    def __init__(self, block: DecoderBlock, rows: int) -> None:
        snake, transposed, *units = block.block
        self._alpha = _alpha(snake)
        self._transposed = _TransposedConvolution(cast(CausalConvTranspose1d, transposed), rows)
        self._units = [_Unit(cast(ResidualUnit, unit), rows) for unit in units]

    def __call__(
        self, branch: Tensor, bias: Tensor | None, skip: Tensor | None, rows: Rows
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        layer = self._transposed
        _, joined = snake_extend(branch, self._alpha, layer.past, rows, bias=bias, skip=skip)
        branch, bias, skip = layer(joined), layer.bias, None
        for unit in self._units:
            branch, bias, skip = unit(branch, bias, skip, rows)
        return branch, bias, skip


class _TransposedConvolution:
    """A transposed convolution without its bias as one product over the steps that reach into an output."""

    def __init__(self, layer: CausalConvTranspose1d, rows: int) -> None:
        weight, stride = layer.conv.weight, layer.stride
        inputs, self._outputs, taps = weight.shape
        assert taps == (layer.context + 1) * stride, "kernels are whole multiples of the stride"
        self.past = weight.new_zeros(rows, layer.context, inputs) if layer.context else None
        self.bias = layer.conv.bias
        self._stride, self._seen = stride, layer.context + 1
        # [C, O, steps back, stride] to [stride * O, seen steps * C], the oldest step first.
        parts = weight.unflatten(2, (self._seen, stride)).flip(2).permute(3, 1, 2, 0)
        self._weight = parts.reshape(stride * self._outputs, self._seen * inputs).contiguous()

    def __call__(self, joined: Tensor) -> Tensor:
        batch, length, inputs = joined.shape
        steps = length - self._seen + 1
        seen = joined.as_strided((batch, steps, self._seen * inputs), (length * inputs, inputs, 1))
        return F.linear(seen.contiguous(), self._weight).view(batch, steps * self._stride, self._outputs)


class _Unit:
    """Two Snake convolutions around a skip."""

    def __init__(self, unit: ResidualUnit, rows: int) -> None:
        first_snake, dilated, second_snake, pointwise = unit.block
        self._alphas = _alpha(first_snake), _alpha(second_snake)
        self._dilated = _Convolution(cast(CausalConv1d, dilated), rows)
        conv = cast(CausalConv1d, pointwise).conv
        self._weight, self._bias = conv.weight.squeeze(2).contiguous(), conv.bias

    def __call__(
        self, branch: Tensor, bias: Tensor | None, skip: Tensor | None, rows: Rows
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        first, second = self._alphas
        dilated = self._dilated
        total, joined = snake_extend(branch, first, dilated.past, rows, bias=bias, skip=skip, keeps_total=True)
        _, inner = snake_extend(dilated(joined), second, None, rows, bias=dilated.bias)
        return F.linear(inner, self._weight), self._bias, total


def _alpha(snake: nn.Module) -> Tensor:
    return cast(Snake, snake).alpha.flatten()
