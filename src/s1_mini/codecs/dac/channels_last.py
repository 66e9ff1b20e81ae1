"""The codec's decoder laid out for a GPU: channels last, few kernels, the past of all rows in place.

The same sums as `Dac.push` in another order. A pointwise or transposed convolution is one matrix product, a dilated one
a kernel of ours (`kernels/convolution.py`); bias, skip and Snake between two of them are one pass (`kernels/snake.py`).
Where the GPU allows it the convolutions are a chain: each writes the input of the next one, with fewer passes over
memory and fewer roundings.
Shapes: B rows, P steps of past, T steps, C channels, O outputs; S = window - 1 + T attended steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.dac.layers import (
    Bound,
    CausalConv1d,
    CausalConvTranspose1d,
    Chain,
    ConvNeXtBlock,
    ResidualUnit,
    Snake,
)
from s1_mini.codecs.dac.model import Dac, Decoder, DecoderBlock, Quantizer
from s1_mini.codecs.dac.quantizer import VectorQuantizer
from s1_mini.codecs.dac.transformer import WindowTransformer
from s1_mini.kernels.convolution import convolve
from s1_mini.kernels.convolution_chain import COPIED, Ending, convolve_on, exchange_past, runs_chain
from s1_mini.kernels.gate import gate
from s1_mini.kernels.linear import linear
from s1_mini.kernels.norm import add_norm
from s1_mini.kernels.residual_unit import UnitWeights, residual_unit
from s1_mini.kernels.rope import turn_and_part
from s1_mini.kernels.snake import Rows, snake_extend, snake_table
from s1_mini.layers.transformer import LayerScale, TransformerBlock

ALIGNED = 8  # attention wants masks whose rows lie a multiple of this apart


class WindowRows:
    """The window transformer for rows chosen on the device; x [B, T, C], the scales of its branches in the weights.

    The same sums as `WindowTransformer.forward` with a carry.
    """

    def __init__(self, transformer: WindowTransformer, rows: int) -> None:
        self._rope, self._window, self._norm = transformer.rope, transformer.window, transformer.norm
        self._seen = torch.zeros(rows, dtype=torch.int64, device=transformer.rope.device)
        self._layers = [_Layer(cast(TransformerBlock, layer), self._window - 1, rows) for layer in transformer.layers]

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        steps = torch.arange(x.shape[1], device=x.device)
        start = self._seen[rows.chosen].masked_fill(rows.fresh, 0)
        self._seen[rows.chosen] = start + x.shape[1]
        rope = self._rope[start.unsqueeze(1) + steps]
        mask = self._mask(start, steps, x.dtype)
        branch = None
        for layer in self._layers:
            x, branch = layer(x, branch, rope, mask, rows)
        return add_norm(x, branch, self._norm.spec)[1]

    def _mask(self, start: Tensor, steps: Tensor, dtype: torch.dtype) -> Tensor:
        """What is added to scores: 0 where step t may look, else minus infinity; [B, 1, T, S]."""
        context = self._window - 1
        length = context + len(steps)
        offset = torch.arange(length + -length % ALIGNED, device=steps.device) - context  # relative to `start`
        distance = steps.unsqueeze(1) - offset
        near = (distance >= 0) & (distance < self._window)
        sees = near & (offset >= -start.unsqueeze(1)).unsqueeze(1)
        mask = torch.zeros(sees.shape, dtype=dtype, device=steps.device).masked_fill(~sees, -torch.inf)
        return mask.unsqueeze(1)[..., :length]


class _Layer:
    def __init__(self, block: TransformerBlock, context: int, rows: int) -> None:
        attention, feed = block.attention, block.feed_forward
        config = attention.config
        assert not config.qk_norm
        assert isinstance(block.attention_layer_scale, LayerScale)
        self._heads, self._groups, self._size = config.num_heads, config.num_kv_heads, config.head_dim
        self._norms = block.attention_norm, block.ffn_norm
        self._qkv = attention.wqkv
        self._out = block.attention_layer_scale.gamma.unsqueeze(1) * attention.wo.weight
        self._opened = torch.cat((feed.w1.weight, feed.w3.weight))
        self._closed = cast(LayerScale, block.ffn_layer_scale).gamma.unsqueeze(1) * feed.w2.weight
        self.past = self._out.new_zeros(rows, context, 2 * self._groups * self._size)  # keys, then values

    def __call__(
        self, x: Tensor, branch: Tensor | None, rope: Tensor, mask: Tensor, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """Take and give x and what is still to be added to it."""
        first, second = self._norms
        x, normal = add_norm(x, branch, first.spec)
        queries, pairs = turn_and_part(
            linear(normal, self._qkv.weight, self._qkv.bias), rope, self._heads, self._groups
        )
        _, joined = snake_extend(pairs, None, self.past, rows)
        keys, values = joined.unflatten(-1, (2, self._groups, self._size)).unbind(2)
        sound = F.scaled_dot_product_attention(
            queries.unflatten(-1, (self._heads, self._size)).transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask.expand(-1, self._heads, -1, -1),
            enable_gqa=self._groups != self._heads,
        )
        branch = linear(sound.transpose(1, 2).flatten(2), self._out, None)
        x, normal = add_norm(x, branch, second.spec)
        return x, linear(gate(linear(normal, self._opened, None)), self._closed, None)


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
    """Return α of each channel [C]."""
    return cast(Snake, snake).alpha.flatten()


def can_chain(decoder: Decoder) -> bool:
    """Whether the GPU of its weights and all its widths are such that a chain can be made of it."""
    convolutions = [layer for layer in decoder.modules() if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d)]
    widths = {layer.in_channels for layer in convolutions} | {layer.out_channels for layer in convolutions[:-1]}
    return runs_chain(convolutions[0].weight) and all(width % COPIED == 0 for width in widths)


class ChainedDecoder:
    """Streams of `rows` rows of one decoder."""

    def __init__(self, decoder: Decoder, rows: int) -> None:
        first, *blocks, last_snake, last, bound = decoder.model
        links: list[_ChainedConvolution | _ChainedUnit] = [
            _ChainedConvolution.of(cast(CausalConv1d, first), None, rows)
        ]
        for block in blocks:
            snake, transposed, *units = cast(DecoderBlock, block).block
            links.append(
                _ChainedConvolution.of_transposed(cast(CausalConvTranspose1d, transposed), alpha_of(snake), rows)
            )
            links.extend(_ChainedUnit.of(cast(ResidualUnit, unit), rows) for unit in units)
        self._last = LastConvolution(cast(CausalConv1d, last), cast(Bound, bound), rows)
        self._last_alpha = alpha_of(last_snake)
        self._links = links
        for link, following in pairwise(links):
            link.end(following.alpha, following.past, keeps_total=isinstance(following, _ChainedUnit))
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
class _ChainedConvolution:
    """A convolution, dilated or transposed: [B, P + T, C] to what its ending says."""

    weight: Tensor  # [K, C, O]
    dilation: int
    alpha: Tensor | None  # [C], of the Snake before it
    past: Tensor | None  # [rows, P, C]
    ending: Ending

    @classmethod
    def of(cls, layer: CausalConv1d, alpha: Tensor | None, rows: int) -> _ChainedConvolution:
        conv = layer.conv
        weight = conv.weight.permute(2, 1, 0).contiguous()
        ending = Ending(conv.out_channels, conv.bias, None, 0, keeps_total=False)
        return cls(weight, conv.dilation[0], alpha, _no_past(weight, rows, layer.context, conv.in_channels), ending)

    @classmethod
    def of_transposed(cls, layer: CausalConvTranspose1d, alpha: Tensor, rows: int) -> _ChainedConvolution:
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
        """Adapt the epilogue to the next link."""
        self.ending = _ended(self.ending, self.weight.shape[2], alpha, past, keeps_total)

    def __call__(self, _: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
        return convolve_on(joined, self.weight, self.dilation, self.ending)


@dataclass
class _ChainedUnit:
    """Two convolutions around a skip."""

    weights: UnitWeights
    alpha: Tensor
    past: Tensor | None
    ending: Ending

    @classmethod
    def of(cls, unit: ResidualUnit, rows: int) -> _ChainedUnit:
        first_snake, dilated, second_snake, pointwise = unit.block
        first = _ChainedConvolution.of(cast(CausalConv1d, dilated), alpha_of(first_snake), rows)
        second = _ChainedConvolution.of(cast(CausalConv1d, pointwise), alpha_of(second_snake), rows)
        first.end(second.alpha, second.past, keeps_total=False)
        assert first.alpha is not None
        weights = UnitWeights(first.weight, first.dilation, first.ending, second.weight)
        return cls(weights, first.alpha, first.past, second.ending)

    def end(self, alpha: Tensor | None, past: Tensor | None, *, keeps_total: bool) -> None:
        """Adapt the epilogue to the next link."""
        self.ending = _ended(self.ending, self.ending.channels, alpha, past, keeps_total)

    def __call__(self, total: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
        return residual_unit(joined, self.weights, self.ending, total)


def _no_past(weight: Tensor, rows: int, context: int, inputs: int) -> Tensor | None:
    """What is remembered at first of `inputs` channels."""
    return weight.new_zeros(rows, context, inputs) if context else None


def _ended(ending: Ending, outputs: int, alpha: Tensor | None, past: Tensor | None, keeps_total: bool) -> Ending:
    snake = None if alpha is None else snake_table(alpha).repeat(1, outputs // ending.channels)
    return replace(ending, snake=snake, context=0 if past is None else past.shape[1], keeps_total=keeps_total)


class ChannelsLastDecoder:
    """Streams of `rows` rows of one codec, whose decoding weights it lays out anew."""

    def __init__(self, codec: Dac, rows: int, *, chained: bool | None = None) -> None:
        """Take its decoder as a chain or not; None: where the GPU and the sizes allow it."""
        self._books = _Books(codec.quantizer)
        self._upsample = [_Upsampling(cast(Chain, stage), rows) for stage in codec.quantizer.upsample]
        self._post = WindowRows(codec.quantizer.post_module, rows)
        self._chain = ChainedDecoder(codec.decoder, rows) if _chains(codec, chained) else None
        if self._chain is not None:
            return
        first, *blocks, last_snake, last, bound = codec.decoder.model
        self._first = _Convolution(cast(CausalConv1d, first), rows)
        self._blocks = [_Block(cast(DecoderBlock, block), rows) for block in blocks]
        self._last_alpha = alpha_of(last_snake)
        self._last = LastConvolution(cast(CausalConv1d, last), cast(Bound, bound), rows)

    def push_where(self, codes: Tensor, chosen: Tensor, fresh: Tensor) -> Tensor:
        """Decode the next frames [n, K, F] of the rows `chosen` [n], those that are `fresh` [n] from their beginning.

        Gives samples [n, T]. All of it lies on the device. Nothing is checked, no length counted.
        """
        rows = Rows(chosen, fresh)
        # What a layer gives is `branch`; its bias and the skip around it are added where they are next read.
        branch, bias, skip = self._post(self._books(codes), rows), None, None
        for stage in self._upsample:
            branch, bias, skip = stage(branch, bias, skip, rows)
        if self._chain is not None:
            return self._chain(branch, bias, skip, rows)
        _, joined = snake_extend(branch, None, self._first.past, rows, bias=bias, skip=skip)
        branch, bias, skip = self._first(joined), self._first.bias, None
        for block in self._blocks:
            branch, bias, skip = block(branch, bias, skip, rows)
        _, joined = snake_extend(branch, self._last_alpha, self._last.past, rows, bias=bias, skip=skip)
        return self._last(joined)


def _chains(codec: Dac, chained: bool | None) -> bool:
    return can_chain(codec.decoder) if chained is None else chained


class _Books:
    """All codebooks as one table of what each entry adds: codes [B, K, F] to vectors [B, F, C]."""

    def __init__(self, quantizer: Quantizer) -> None:
        books = quantizer.semantic_quantizer.books + quantizer.quantizer.books
        parts = [_entries(book) for book in books]
        self._table = torch.cat(parts).to(books[0].codebook.weight.dtype)
        sizes = torch.tensor([len(part) for part in parts])
        self._last = (sizes - 1).to(self._table.device)
        self._first = (sizes.cumsum(0) - sizes).to(self._table.device)

    def __call__(self, codes: Tensor) -> Tensor:
        inside = codes.transpose(1, 2).clamp(min=0).minimum(self._last)  # as `VectorQuantizer.decode`
        return F.embedding(inside + self._first, self._table).sum(2)


def _entries(book: VectorQuantizer) -> Tensor:
    """What each entry of a book adds [size, C], in fp32."""
    out = book.out_proj
    assert out.bias is not None
    return F.linear(book.codebook.weight.float(), out.weight.squeeze(2).float(), out.bias.float())


class _Upsampling:
    """A transposed convolution that keeps its channels, then a ConvNeXt block."""

    def __init__(self, stage: Chain, rows: int) -> None:
        transposed, block = cast(CausalConvTranspose1d, stage[0]), cast(ConvNeXtBlock, stage[1])
        self._transposed = _TransposedConvolution(transposed, rows)
        self._depthwise, self._norm, self._wide = block.dwconv.conv, block.norm, block.pwconv1
        self.past = self._depthwise.weight.new_zeros(rows, block.dwconv.context, block.gamma.numel())
        self._narrow = block.gamma.unsqueeze(1) * block.pwconv2.weight
        self._bias = block.gamma * block.pwconv2.bias

    def __call__(
        self, branch: Tensor, bias: Tensor | None, skip: Tensor | None, rows: Rows
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        layer, conv, norm = self._transposed, self._depthwise, self._norm
        _, joined = snake_extend(branch, None, layer.past, rows, bias=bias, skip=skip)
        total, joined = snake_extend(layer(joined), None, self.past, rows, bias=layer.bias, keeps_total=True)
        inner = F.conv1d(joined.transpose(1, 2), conv.weight, conv.bias, groups=conv.groups).transpose(1, 2)
        inner = F.layer_norm(inner, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        opened = F.gelu(linear(inner, self._wide.weight, self._wide.bias))
        return linear(opened, self._narrow, None), self._bias, total


class _Convolution:
    """A dilated convolution without its bias: [B, P + T, C] to [B, T, O]."""

    def __init__(self, layer: CausalConv1d, rows: int) -> None:
        weight = layer.conv.weight
        self.past = weight.new_zeros(rows, layer.context, weight.shape[1])
        self.bias = layer.conv.bias
        self._dilation = layer.conv.dilation[0]
        self._weight = weight.permute(2, 1, 0).contiguous()  # [K, C, O]

    def __call__(self, joined: Tensor) -> Tensor:
        return convolve(joined, self._weight, self._dilation)


class _Block:
    """A transposed convolution, then residual units; takes and gives what is still to be added."""

    def __init__(self, block: DecoderBlock, rows: int) -> None:
        snake, transposed, *units = block.block
        self._alpha = alpha_of(snake)
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
        return linear(seen.contiguous(), self._weight, None).view(batch, steps * self._stride, self._outputs)


class _Unit:
    """Two Snake convolutions around a skip."""

    def __init__(self, unit: ResidualUnit, rows: int) -> None:
        first_snake, dilated, second_snake, pointwise = unit.block
        self._alphas = alpha_of(first_snake), alpha_of(second_snake)
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
        return linear(inner, self._weight, None), self._bias, total
