"""The decoding half of a loaded codec as a GPU likes it: channels last, few kernels, the past of all rows in place.

The same sums as `Dac.push` in another order. A pointwise or transposed convolution is one matrix product, a dilated one
a kernel of ours (`kernels/convolution.py`); what lies between two of them is one pass (`kernels/snake.py`).
Shapes: B rows, T steps, C channels, O outputs.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.codecs.dac.chain import ChainedDecoder, can_chain
from s1_mini.codecs.dac.last import LastConvolution, alpha_of
from s1_mini.codecs.dac.layers import Bound, CausalConv1d, CausalConvTranspose1d, Chain, ConvNeXtBlock, ResidualUnit
from s1_mini.codecs.dac.model import Dac, DecoderBlock, Quantizer
from s1_mini.codecs.dac.quantizer import VectorQuantizer
from s1_mini.codecs.dac.window_rows import WindowRows
from s1_mini.kernels.convolution import convolve
from s1_mini.kernels.linear import linear
from s1_mini.kernels.snake import Rows, snake_extend


class ChannelsLastDecoder:
    """Streams of `rows` rows of one codec, whose decoding weights it lays out anew."""

    def __init__(self, codec: Dac, rows: int, *, chained: bool | None = None) -> None:
        """Take its decoder as a chain (`chain.py`) or not; None: where the GPU and the sizes allow it."""
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
