"""The codec's decoder for a GPU: channels last, few kernels, and state that is updated in place.

It computes the same as `CausalCodec.push`, with sums in another order. A pointwise or transposed convolution is one
matrix product; a dilated convolution has its own kernel (`kernels/convolution.py`). One kernel applies bias, skip and
Snake between two convolutions (`kernels/snake.py`). GPUs that support it run the convolutions as a chain: the kernel of
each convolution also writes the input of the next, with fewer passes over memory and less rounding.
Shapes: B rows, P steps of past, T steps, C channels, O outputs; S = window - 1 + T attended steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.causal.codec import CausalCodec
from s1_mini.codecs.causal.layers import (
    CausalConv1d,
    CausalConvTranspose1d,
    Chain,
    ConvNeXtBlock,
    Decoder,
    DecoderBlock,
    ResidualUnit,
    Snake,
    WindowTransformer,
    transposed_by_step,
    window_mask,
)
from s1_mini.kernels.convolution import convolve, depthwise_norm
from s1_mini.kernels.convolution_chain import (
    COPIED,
    Epilogue,
    UnitWeights,
    convolve_on,
    exchange_past,
    residual_unit,
    runs_chain,
)
from s1_mini.kernels.linear import linear
from s1_mini.kernels.norm import add_norm
from s1_mini.kernels.rope import rope_and_split
from s1_mini.kernels.snake import Factors, Rows, snake_extend, snake_table
from s1_mini.kernels.swiglu import swiglu
from s1_mini.layers.transformer import LayerScale, TransformerBlock

ALIGNED = 8  # the row stride of an attention mask must be a multiple of this


class ChannelsLastDecoder:
    """Decodes up to `rows` streams at once; it copies the codec's decoding weights to another layout."""

    def __init__(self, codec: CausalCodec, rows: int, *, chained: bool | None = None) -> None:
        """`chained` says whether to run convolutions as a chain; None: yes, if the GPU and the sizes support it."""
        front, transformer, upsample, decoder = codec.parts
        self._pasts = pasts = _Pasts(rows)
        self._books = _Books(codec.tables(), transformer.norm.weight.dtype)
        self._front = None if front is None else _Convolution(front, pasts)
        self._transformer = _WindowRows(transformer, pasts)
        self._upsample = [_Upsampling(cast(Chain, stage), pasts) for stage in upsample]
        is_chained = can_chain(decoder) if chained is None else chained
        self._decoder = (ChainedDecoder if is_chained else _PlainDecoder)(decoder, pasts)

    def push_slots(self, codes: Tensor, slot_ids: Tensor, reset_mask: Tensor) -> Tensor:
        """Decode the next frames [n, K, F] of the streams `slot_ids` [n] to samples [n, T].

        `reset_mask` [n] is true for streams that begin. All tensors are on the device. The caller must check the
        arguments and the lengths of the streams.
        """
        rows = Rows(slot_ids, reset_mask)
        x = _Sum(self._books(codes))
        if self._front is not None:
            x = self._front(x.enter(None, self._front.past, rows)[1])
        x = self._transformer(x.enter(None, None, rows)[1], rows)
        for stage in self._upsample:
            x = stage(x, rows)
        return self._decoder(x, rows)

    def save(self, slot: int) -> list[Tensor]:
        """Return a copy of the state of a stream."""
        return [past[slot].clone() for past in self._pasts.tensors]

    def load(self, slot: int, saved: Sequence[Tensor]) -> None:
        """Replace a slot's state by one from `save`."""
        for past, one in zip(self._pasts.tensors, saved, strict=True):
            past[slot] = one


class _Pasts:
    """Allocates the state of all layers for a number of streams."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.tensors: list[Tensor] = []

    def allocate(self, like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return zeros [rows, *shape] with the device of `like`, and with its dtype unless `dtype` is given."""
        self.tensors.append(like.new_zeros(self._rows, *shape, dtype=dtype or like.dtype))
        return self.tensors[-1]

    def of(self, like: Tensor, context: int, channels: int) -> Tensor | None:
        """Return zeros for `context` past inputs, or None for a layer that needs none."""
        return self.allocate(like, context, channels) if context else None


class _Sum(NamedTuple):
    """A layer's output as a sum of up to three parts, which the next layer adds when it reads the output."""

    branch: Tensor  # [B, T, C]
    bias: Tensor | None = None  # [C]
    skip: Tensor | None = None  # [B, T, C]

    def enter(
        self, factors: Factors | None, past: Tensor | None, rows: Rows, *, keeps_total: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the sum, and the past followed by Snake of the sum; see `snake_extend`."""
        if factors is None and past is None and self.bias is None and self.skip is None:
            return self.branch, self.branch
        return snake_extend(self.branch, factors, past, rows, bias=self.bias, skip=self.skip, keeps_total=keeps_total)


class _Books:
    """Converts codes [B, K, F] to vectors [B, F, C], with one table of the projected entries of all codebooks."""

    def __init__(self, tables: list[Tensor], dtype: torch.dtype) -> None:
        self._table = torch.cat(tables).to(dtype)
        sizes = torch.tensor([len(table) for table in tables])
        self._last = (sizes - 1).to(self._table.device)
        self._first = (sizes.cumsum(0) - sizes).to(self._table.device)

    def __call__(self, codes: Tensor) -> Tensor:
        inside = codes.transpose(1, 2).clamp(min=0).minimum(self._last)  # the codecs' own `decode` also clamps
        return F.embedding(inside + self._first, self._table).sum(2)


class _WindowRows:
    """The window transformer for x [B, T, C]: slot numbers are on the device, layer scales folded into the weights."""

    def __init__(self, transformer: WindowTransformer, pasts: _Pasts) -> None:
        self._rope, self._window, self._norm = transformer.rope, transformer.window, transformer.norm
        self._input, self._output = transformer.input_proj, transformer.output_proj
        self._seen = pasts.allocate(transformer.rope, dtype=torch.int64)
        self._layers = [_Layer(cast(TransformerBlock, layer), self._window - 1, pasts) for layer in transformer.layers]

    def __call__(self, x: Tensor, rows: Rows) -> _Sum:
        x = x if self._input is None else linear(x, self._input.weight, self._input.bias)
        steps = torch.arange(x.shape[1], device=x.device)
        start = self._seen[rows.slot_ids].masked_fill(rows.reset_mask, 0)
        self._seen[rows.slot_ids] = start + x.shape[1]
        rope = self._rope[start.unsqueeze(1) + steps]
        length = self._window - 1 + len(steps)
        is_visible = window_mask(start, steps, self._window, -length % ALIGNED)
        mask = torch.zeros(is_visible.shape, dtype=x.dtype, device=x.device).masked_fill(~is_visible, -torch.inf)
        mask = mask[..., :length]  # [B, 1, T, S], added to scores
        branch = None
        for layer in self._layers:
            x, branch = layer(x, branch, rope, mask, rows)
        x = add_norm(x, branch, self._norm.spec)[1]
        return _Sum(x) if self._output is None else _Sum(linear(x, self._output.weight, None), self._output.bias)


class _Layer:
    def __init__(self, block: TransformerBlock, context: int, pasts: _Pasts) -> None:
        attention, feed = block.attention, block.feed_forward
        config = attention.config
        assert not config.qk_norm
        assert isinstance(block.attention_layer_scale, LayerScale)
        self._heads, self._groups, self._size = config.num_heads, config.num_kv_heads, config.head_dim
        self._norms = block.attention_norm, block.ffn_norm
        self._qkv = attention.wqkv
        self._out = block.attention_layer_scale.gamma.unsqueeze(1) * attention.wo.weight
        self._gated_weight = torch.cat((feed.w1.weight, feed.w3.weight))
        self._down_weight = cast(LayerScale, block.ffn_layer_scale).gamma.unsqueeze(1) * feed.w2.weight
        self.past = pasts.allocate(self._out, context, 2 * self._groups * self._size)  # keys, then values

    def __call__(
        self, x: Tensor, branch: Tensor | None, rope: Tensor, mask: Tensor, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """Return the layer's output as two summands, x and a branch, which the next layer adds."""
        first, second = self._norms
        x, normed = add_norm(x, branch, first.spec)
        queries, pairs = rope_and_split(
            linear(normed, self._qkv.weight, self._qkv.bias), rope, self._heads, self._groups
        )
        _, joined = snake_extend(pairs, None, self.past, rows)
        keys, values = joined.unflatten(-1, (2, self._groups, self._size)).unbind(2)
        attended = F.scaled_dot_product_attention(
            queries.unflatten(-1, (self._heads, self._size)).transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask.expand(-1, self._heads, -1, -1),
            enable_gqa=self._groups != self._heads,
        )
        branch = linear(attended.transpose(1, 2).flatten(2), self._out, None)
        x, normed = add_norm(x, branch, second.spec)
        return x, linear(swiglu(linear(normed, self._gated_weight, None)), self._down_weight, None)


class _Upsampling:
    """A transposed convolution that keeps the number of channels, then a ConvNeXt block."""

    def __init__(self, stage: Chain, pasts: _Pasts) -> None:
        transposed, block = cast(CausalConvTranspose1d, stage[0]), cast(ConvNeXtBlock, stage[1])
        self._transposed = _TransposedConvolution(transposed, pasts)
        depthwise = block.dwconv.conv
        self._norm, self._up = block.norm, block.pwconv1
        self.past = pasts.of(depthwise.weight, block.dwconv.context, block.gamma.numel())
        self._taps, self._taps_bias = depthwise.weight.squeeze(1).t().contiguous(), depthwise.bias  # [K, C], [C]
        self._down_weight = block.gamma.unsqueeze(1) * block.pwconv2.weight
        self._bias = block.gamma * block.pwconv2.bias

    def __call__(self, x: _Sum, rows: Rows) -> _Sum:
        total, joined = self._transposed(x, None, rows).enter(None, self.past, rows, keeps_total=True)
        inner = depthwise_norm(joined, self._taps, self._taps_bias, self._norm)
        activated = F.gelu(linear(inner, self._up.weight, self._up.bias))
        return _Sum(linear(activated, self._down_weight, None), self._bias, total)


class _LastConvolution:
    """The last convolution, to one channel, with bias and bound: [B, P + T, C] to samples [B, T].

    One product for all taps, which reads each step once, is followed by a sum of shifted columns.
    """

    def __init__(self, layer: CausalConv1d, bound: nn.Module, pasts: _Pasts) -> None:
        weight, bias = layer.conv.weight, layer.conv.bias
        assert bias is not None
        self.past = pasts.allocate(weight, layer.context, weight.shape[1])
        self._taps = weight.shape[2]
        self._weight = F.pad(weight[0].t(), (0, 0, 0, -self._taps % 8)).contiguous()  # [taps, C]
        self._bias, self._bound = bias.float(), bound

    def __call__(self, joined: Tensor) -> Tensor:
        parts = linear(joined, self._weight, None)  # [B, P + T, taps], each step's contribution to later steps
        batch, length, width = parts.shape
        steps = length - self._taps + 1
        seen = parts.as_strided((batch, steps, self._taps), (length * width, width, width + 1))
        return self._bound(seen.sum(-1, dtype=torch.float32) + self._bias)


class _Convolution:
    """A dilated convolution: [B, T, C] to [B, T, O]."""

    def __init__(self, layer: CausalConv1d, pasts: _Pasts) -> None:
        weight = layer.conv.weight
        self.past = pasts.of(weight, layer.context, weight.shape[1])
        self._bias, self._dilation = layer.conv.bias, layer.conv.dilation[0]
        self._weight = weight.permute(2, 1, 0).contiguous()  # [K, C, O]

    def __call__(self, joined: Tensor) -> _Sum:
        return _Sum(convolve(joined, self._weight, self._dilation), self._bias)


class _TransposedConvolution:
    """A transposed convolution, as one product with all steps that contribute to an output."""

    def __init__(self, layer: CausalConvTranspose1d, pasts: _Pasts) -> None:
        inputs, self._outputs, _ = layer.conv.weight.shape
        self.past = pasts.of(layer.conv.weight, layer.context, inputs)
        self._bias, self._stride, self._seen = layer.conv.bias, layer.stride, layer.context + 1
        self._weight = transposed_by_step(layer).flatten(0, 1).t().contiguous()  # [stride * O, seen steps * C]

    def __call__(self, x: _Sum, factors: Factors | None, rows: Rows) -> _Sum:
        _, joined = x.enter(factors, self.past, rows)
        batch, length, inputs = joined.shape
        steps = length - self._seen + 1
        seen = joined.as_strided((batch, steps, self._seen * inputs), (length * inputs, inputs, 1))
        out = linear(seen.contiguous(), self._weight, None)
        return _Sum(out.view(batch, steps * self._stride, self._outputs), self._bias)


class _Unit:
    """Two convolutions, each after a Snake, with a skip connection around both."""

    def __init__(self, unit: ResidualUnit, pasts: _Pasts) -> None:
        first_snake, dilated, second_snake, pointwise = unit.block
        self._factors = _factors_of(first_snake), _factors_of(second_snake)
        self._dilated = _Convolution(cast(CausalConv1d, dilated), pasts)
        conv = cast(CausalConv1d, pointwise).conv
        self._weight, self._bias = conv.weight.squeeze(2).contiguous(), conv.bias

    def __call__(self, x: _Sum, rows: Rows) -> _Sum:
        total, joined = x.enter(self._factors[0], self._dilated.past, rows, keeps_total=True)
        _, inner = self._dilated(joined).enter(self._factors[1], None, rows)
        return _Sum(linear(inner, self._weight, None), self._bias, total)


class _PlainDecoder:
    """The convolutions with separate kernels between them, not as a chain: [B, T, C] to samples [B, T']."""

    def __init__(self, decoder: Decoder, pasts: _Pasts) -> None:
        first, *blocks, last_snake, last, bound = decoder.model
        self._first = _Convolution(cast(CausalConv1d, first), pasts)
        self._blocks: list[tuple[Factors, _TransposedConvolution, list[_Unit]]] = []
        for block in blocks:
            snake, transposed, *units = cast(DecoderBlock, block).block
            convolution = _TransposedConvolution(cast(CausalConvTranspose1d, transposed), pasts)
            each = [_Unit(cast(ResidualUnit, unit), pasts) for unit in units]
            self._blocks.append((_factors_of(snake), convolution, each))
        self._last_factors = _factors_of(last_snake)
        self._last = _LastConvolution(cast(CausalConv1d, last), bound, pasts)

    def __call__(self, x: _Sum, rows: Rows) -> Tensor:
        x = self._first(x.enter(None, self._first.past, rows)[1])
        for factors, transposed, units in self._blocks:
            x = transposed(x, factors, rows)
            for unit in units:
                x = unit(x, rows)
        return self._last(x.enter(self._last_factors, self._last.past, rows)[1])


def can_chain(decoder: Decoder) -> bool:
    """Return whether the decoder's GPU and all its widths support the chain."""
    convolutions = [layer for layer in decoder.modules() if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d)]
    widths = {layer.in_channels for layer in convolutions} | {layer.out_channels for layer in convolutions[:-1]}
    return runs_chain(convolutions[0].weight) and all(width % COPIED == 0 for width in widths)


class ChainedDecoder:
    """The convolutions as a chain: [B, T, C] to samples [B, T']."""

    def __init__(self, decoder: Decoder, pasts: _Pasts) -> None:
        first, *blocks, last_snake, last, bound = decoder.model
        self._links = [_Link.of(cast(CausalConv1d, first), None, pasts)]
        for block in blocks:
            snake, transposed, *units = cast(DecoderBlock, block).block
            self._links.append(_Link.of_transposed(cast(CausalConvTranspose1d, transposed), _factors_of(snake), pasts))
            self._links.extend(_Link.of_unit(cast(ResidualUnit, unit), pasts) for unit in units)
        self._last = _LastConvolution(cast(CausalConv1d, last), bound, pasts)
        for link, following in pairwise(self._links):
            link.connect(following.factors, following.past, keeps_total=following.unit is not None)
        self._links[-1].connect(_factors_of(last_snake), self._last.past)

    def __call__(self, x: _Sum, rows: Rows) -> Tensor:
        first = self._links[0]
        total, joined = first(x.branch, x.enter(None, first.past, rows)[1])
        for link in self._links[1:]:
            if link.past is not None:
                exchange_past(joined, link.past, rows)
            total, joined = link(total, joined)
        exchange_past(joined, self._last.past, rows)
        return self._last(joined)


@dataclass
class _Link:
    """A dilated or transposed convolution, or a residual unit, with its epilogue."""

    weight: Tensor  # [K, C, O]; for a residual unit, the weight of its second convolution
    dilation: int
    factors: Factors | None  # of the Snake before the convolution, which the previous link applies
    past: Tensor | None  # [rows, P, C]
    epilogue: Epilogue
    unit: UnitWeights | None = None

    @classmethod
    def of(cls, layer: CausalConv1d, factors: Factors | None, pasts: _Pasts) -> _Link:
        conv = layer.conv
        weight = conv.weight.permute(2, 1, 0).contiguous()
        epilogue = Epilogue(conv.out_channels, conv.bias, None, 0, keeps_total=False)
        return cls(weight, conv.dilation[0], factors, pasts.of(weight, layer.context, conv.in_channels), epilogue)

    @classmethod
    def of_transposed(cls, layer: CausalConvTranspose1d, factors: Factors, pasts: _Pasts) -> _Link:
        """Return a transposed convolution as a plain one, whose output channels hold `stride` steps of the output."""
        conv, bias = layer.conv, layer.conv.bias
        epilogue = Epilogue(
            conv.out_channels, None if bias is None else bias.repeat(layer.stride), None, 0, keeps_total=False
        )
        return cls(
            transposed_by_step(layer), 1, factors, pasts.of(conv.weight, layer.context, conv.in_channels), epilogue
        )

    @classmethod
    def of_unit(cls, unit: ResidualUnit, pasts: _Pasts) -> _Link:
        first_snake, dilated, second_snake, pointwise = unit.block
        first = cls.of(cast(CausalConv1d, dilated), _factors_of(first_snake), pasts)
        second = cls.of(cast(CausalConv1d, pointwise), _factors_of(second_snake), pasts)
        first.connect(second.factors, second.past)
        weights = UnitWeights(first.weight, first.dilation, first.epilogue, second.weight)
        return replace(second, factors=first.factors, past=first.past, unit=weights)

    def connect(self, factors: Factors | None, past: Tensor | None, *, keeps_total: bool = False) -> None:
        """Set up the epilogue for the Snake and the past of the next link."""
        steps_per_input = self.weight.shape[2] // self.epilogue.channels
        snake = None if factors is None else snake_table(*factors).repeat(1, steps_per_input)
        context = 0 if past is None else past.shape[1]
        self.epilogue = replace(self.epilogue, snake=snake, context=context, keeps_total=keeps_total)

    def __call__(self, total: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
        if self.unit is not None:
            return residual_unit(joined, self.unit, self.epilogue, total)
        return convolve_on(joined, self.weight, self.dilation, self.epilogue)


def _factors_of(snake: nn.Module) -> Factors:
    alpha, beta = cast(Snake, snake).factors
    return alpha.flatten(), beta.flatten()
