"""The codec's decoder as a chain: each convolution gives what the next one takes, in as few kernels as there can be.

The same sums as `channels_last.py`, with fewer passes over memory and fewer roundings between two convolutions.
Shapes: B rows, P steps of past, T steps, C channels, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from s1_mini.codecs.dac.last import LastConvolution, alpha_of
from s1_mini.codecs.dac.layers import Bound, CausalConv1d, CausalConvTranspose1d, ResidualUnit
from s1_mini.codecs.dac.model import Decoder, DecoderBlock
from s1_mini.kernels.convolution_chain import COPIED, Ending, convolve_on, runs_chain
from s1_mini.kernels.kept_past import exchange_past
from s1_mini.kernels.quick_snake import snake_table
from s1_mini.kernels.residual_unit import UnitWeights, residual_unit
from s1_mini.kernels.snake import Rows, snake_extend


def can_chain(decoder: Decoder) -> bool:
    """Whether the GPU of its weights and all its widths are such that a chain can be made of it."""
    convolutions = [layer for layer in decoder.modules() if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d)]
    widths = {layer.in_channels for layer in convolutions} | {layer.out_channels for layer in convolutions[:-1]}
    return runs_chain(convolutions[0].weight) and all(width % COPIED == 0 for width in widths)


class ChainedDecoder:
    """Streams of `rows` rows of one decoder."""

    def __init__(self, decoder: Decoder, rows: int) -> None:
        first, *blocks, last_snake, last, bound = decoder.model
        links: list[_Convolution | _Unit] = [_Convolution.of(cast(CausalConv1d, first), None, rows)]
        for block in blocks:
            snake, transposed, *units = cast(DecoderBlock, block).block
            links.append(_Convolution.of_transposed(cast(CausalConvTranspose1d, transposed), alpha_of(snake), rows))
            links.extend(_Unit.of(cast(ResidualUnit, unit), rows) for unit in units)
        self._last = LastConvolution(cast(CausalConv1d, last), cast(Bound, bound), rows)
        self._last_alpha = alpha_of(last_snake)
        self._links = links
        for link, following in pairwise(links):
            link.end(following.alpha, following.past, keeps_total=isinstance(following, _Unit))
        links[-1].end(self._last_alpha, self._last.past, keeps_total=False)

    @property
    def pasts(self) -> list[Tensor]:
        """What is remembered of all rows, by layer."""
        return [link.past for link in self._links if link.past is not None] + [self._last.past]

    def __call__(self, branch: Tensor, bias: Tensor | None, skip: Tensor | None, rows: Rows) -> Tensor:
        """Turn `branch` + `bias` + `skip`, [B, T, C] or None, into samples [B, T']."""
        first = self._links[0]
        _, joined = snake_extend(branch, None, first.past, rows, bias=bias, skip=skip)
        total, joined = first(branch, joined)
        for link in self._links[1:]:
            if link.past is not None:
                exchange_past(joined, link.past, rows)
            total, joined = link(total, joined)
        exchange_past(joined, self._last.past, rows)
        return self._last(joined)


@dataclass
class _Convolution:
    """A convolution, dilated or transposed: [B, P + T, C] to what its ending says."""

    weight: Tensor  # [K, C, O]
    dilation: int
    alpha: Tensor | None  # [C], of the Snake before it
    past: Tensor | None  # [rows, P, C]
    ending: Ending

    @classmethod
    def of(cls, layer: CausalConv1d, alpha: Tensor | None, rows: int) -> _Convolution:
        """Lay out a convolution."""
        conv = layer.conv
        weight = conv.weight.permute(2, 1, 0).contiguous()
        ending = Ending(conv.out_channels, conv.bias, None, 0, keeps_total=False)
        return cls(weight, conv.dilation[0], alpha, _no_past(weight, rows, layer.context, conv.in_channels), ending)

    @classmethod
    def of_transposed(cls, layer: CausalConvTranspose1d, alpha: Tensor, rows: int) -> _Convolution:
        """Lay out a transposed one: its outputs are those of `stride` steps, its taps the steps they are made of."""
        weight, stride, bias = layer.conv.weight, layer.stride, layer.conv.bias
        inputs, outputs, taps = weight.shape
        assert taps == (layer.context + 1) * stride, "kernels are whole multiples of the stride"
        # [C, O, steps back, stride] to [seen steps, C, stride * O], the oldest step first.
        parts = weight.unflatten(2, (layer.context + 1, stride)).flip(2).permute(2, 0, 3, 1)
        ending = Ending(outputs, None if bias is None else bias.repeat(stride), None, 0, keeps_total=False)
        past = _no_past(weight, rows, layer.context, inputs)
        return cls(parts.reshape(-1, inputs, stride * outputs).contiguous(), 1, alpha, past, ending)

    def end(self, alpha: Tensor | None, past: Tensor | None, *, keeps_total: bool) -> None:
        """Tell what the next one wants."""
        self.ending = _ended(self.ending, self.weight.shape[2], alpha, past, keeps_total)

    def __call__(self, _: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
        return convolve_on(joined, self.weight, self.dilation, self.ending)


@dataclass
class _Unit:
    """Two convolutions around a skip."""

    weights: UnitWeights
    alpha: Tensor
    past: Tensor | None
    ending: Ending

    @classmethod
    def of(cls, unit: ResidualUnit, rows: int) -> _Unit:
        """Lay out a unit."""
        first_snake, dilated, second_snake, pointwise = unit.block
        first = _Convolution.of(cast(CausalConv1d, dilated), alpha_of(first_snake), rows)
        second = _Convolution.of(cast(CausalConv1d, pointwise), alpha_of(second_snake), rows)
        first.end(second.alpha, second.past, keeps_total=False)
        assert first.alpha is not None
        weights = UnitWeights(first.weight, first.dilation, first.ending, second.weight)
        return cls(weights, first.alpha, first.past, second.ending)

    def end(self, alpha: Tensor | None, past: Tensor | None, *, keeps_total: bool) -> None:
        """Tell what the next one wants."""
        self.ending = _ended(self.ending, self.ending.channels, alpha, past, keeps_total)

    def __call__(self, total: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
        return residual_unit(joined, self.weights, self.ending, total)


def _no_past(weight: Tensor, rows: int, context: int, inputs: int) -> Tensor | None:
    """What is remembered at first of `inputs` channels."""
    return weight.new_zeros(rows, context, inputs) if context else None


def _ended(ending: Ending, outputs: int, alpha: Tensor | None, past: Tensor | None, keeps_total: bool) -> Ending:
    snake = None if alpha is None else snake_table(alpha).repeat(1, outputs // ending.channels)
    return replace(ending, snake=snake, context=0 if past is None else past.shape[1], keeps_total=keeps_total)
