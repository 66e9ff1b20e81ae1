"""A causal codec as compiled calls on a CPU: weights and state for `kernels/compiled/codec.py`.

Shapes: K codebooks, F frames, P steps of past, T steps, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
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
)
from s1_mini.kernels.compiled import codec as kernel
from s1_mini.kernels.compiled.int16 import HAS_VNNI
from s1_mini.kernels.compiled.layers import gelu, rms_norm, swiglu
from s1_mini.kernels.compiled.product import Int16Product, Product
from s1_mini.kernels.weight import is_close, pack, pack_int16
from s1_mini.layers.transformer import LayerScale, TransformerBlock

MODULE = kernel.__name__
# Differences from torch's samples that `check` allows. Measured: for three frames of random codes.
TOLERANCE = 1e-4  # float32: the largest difference, relative to the largest sample; measured: up to 6e-6
INT16_NOISE = 3e-3  # int16: the RMS of the differences, relative to that of the samples; measured: up to 9e-4
MIN_INT16 = 4096  # weights of a convolution; with fewer, quantizing the input takes longer than int16 saves
NOTHING = np.zeros((0, 0), np.float32)


class CompiledStreams:
    """A `CodecStream` of compiled calls, which differ from torch's in the last bits, for one row per call.

    It copies the codec's decoding weights to another layout. A stream's samples do not depend on how it is divided into
    calls. The caller must check the lengths of streams.
    """

    def __init__(self, codec: CausalCodec, rows: int) -> None:
        front, transformer, upsample, decoder = codec.parts
        tables = codec.tables()
        sizes = np.array([len(table) for table in tables])
        self._table, self._last, self._first = _array(torch.cat(tables)), sizes - 1, sizes.cumsum() - sizes
        self._reach, self._starts = codec.reach, np.zeros(rows, np.int64)
        self._front = [] if front is None else [_Convolution(front, rows)]
        self._transformer = _Transformer(transformer, rows)
        self._upsample = [_Upsampling(cast(Chain, stage), rows) for stage in upsample]
        self._decoder = _Decoder(decoder, rows)
        parts: list[_Part] = [*self._front, self._transformer, *self._upsample, self._decoder]
        self._pasts = [self._starts, *(past for part in parts for past in part.pasts)]
        self.formats = sorted({each for part in parts for each in part.formats})

    def push(self, codes: Tensor, rows: Sequence[int]) -> Tensor:
        """Decode the codes [1, K, F] of the next frames of the only row in `rows` to samples [1, T]."""
        (row,) = rows
        return self._sound(self._frames(codes[0], row), row).unsqueeze(0)

    def skip(self, row: int, codes: Tensor) -> None:
        """Advance one row by the codes [K, F] of frames whose samples are not needed, as `CodecStream.skip` does."""
        self._sound(self._frames(codes, row)[-self._reach :], row)

    def save(self, row: int) -> list[Tensor]:
        """Return a copy of the state of a row."""
        return [torch.tensor(past[row]) for past in self._pasts]

    def load(self, row: int, saved: Sequence[Tensor]) -> None:
        """Replace a row's state by one from `save`."""
        for past, one in zip(self._pasts, saved, strict=True):
            past[row] = one.numpy()

    def reset(self, row: int) -> None:
        """Begin a new utterance in one row."""
        for past in self._pasts:
            past[row] = 0

    def _frames(self, codes: Tensor, row: int) -> np.ndarray:
        """Return the transformer's output [F, C]."""
        inside = codes.numpy().T.clip(0, self._last) + self._first
        x = self._table[inside].sum(1, dtype=np.float32)
        for convolution in self._front:
            x = convolution(convolution.join(x, row))
        x = self._transformer(x, row, int(self._starts[row]))
        self._starts[row] += len(x)
        return x

    def _sound(self, x: np.ndarray, row: int) -> Tensor:
        """Return the samples [T] of the transformer's output [F, C]."""
        for stage in self._upsample:
            x = stage(x, row)
        return self._decoder(x, row)


class _Part:
    pasts: list[np.ndarray]  # [rows, …] each
    formats: list[str]  # kernels and formats of their weights, for `kernel.compile_for`


class _Convolution(_Part):
    """A convolution, or a transposed convolution, which is one that computes `stride` steps for each step of its input.

    Its output has one row per step of the input.
    """

    def __init__(self, layer: CausalConv1d | CausalConvTranspose1d, rows: int) -> None:
        conv = layer.conv
        assert conv.groups == 1
        self.stride = 1
        if isinstance(layer, CausalConvTranspose1d):
            self.stride = layer.stride
            weight = transposed_by_step(layer).flatten(0, 1).t()
        else:
            weight = layer.conv.weight.transpose(1, 2).flatten(1)
        bias = None if conv.bias is None else conv.bias.repeat(self.stride)
        self._shape = weight.shape[1] // conv.in_channels, conv.dilation[0]
        self._part, self._convolve = _pack(weight.contiguous(), bias, self._shape[0])
        self.channels = conv.out_channels
        self.past = np.zeros((rows, layer.context, conv.in_channels), np.float32)
        self.pasts, self.formats = [self.past], [_format(self._convolve, self._part)]

    def join(self, x: np.ndarray, row: int) -> np.ndarray:
        """Return x [T, C] after its past, [P + T, C]."""
        joined = np.concatenate((self.past[row], x))
        self.past[row] = joined[len(x) :]
        return joined

    def __call__(
        self,
        joined: np.ndarray,
        following: np.ndarray | None = None,
        *,
        skip: np.ndarray = NOTHING,
        keeps: np.ndarray = NOTHING,
        snake: np.ndarray = NOTHING,
    ) -> np.ndarray:
        """Return the output, after the past `following` [P, C] of the next layer, which is updated.

        `skip`, `keeps` and `snake` are those of `kernel.convolve`.
        """
        steps = (len(joined) - self.past.shape[1]) * self.stride
        context = 0 if following is None else len(following)
        out = np.empty((context + steps, self.channels), np.float32)
        self._convolve(joined, self._shape, self._part, skip, keeps, snake, out)
        if following is not None:
            out[:context] = following
            following[:] = out[steps:]
        return out


def _pack(weight: Tensor, bias: Tensor | None, taps: int) -> tuple[Product | Int16Product, Callable[..., None]]:
    """Pack the weights [N, taps C] of a convolution; return them with the fastest kernel for them."""
    if HAS_VNNI and weight.numel() >= MIN_INT16 and weight.shape[1] // taps % 2 == 0:
        return pack_int16(weight, bias, taps), kernel.convolve_int16
    return pack([weight], [bias]), kernel.convolve


def _format(convolve: Callable[..., None], part: Product | Int16Product) -> str:
    """Return the kernel and the format of its weights, for `kernel.compile_for`."""
    return f"{convolve.__name__} {part.weight.dtype.name}"


class _Linear:
    def __init__(self, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> None:
        """`scale` [N], if given, multiplies the outputs."""
        part, self._convolve = _pack(weight, bias, 1)
        if scale is not None:
            part = part._replace(scale=part.scale * _array(scale), bias=part.bias * _array(scale))
        self._part, self._outputs = part, len(weight)
        self.format = _format(self._convolve, part)

    @classmethod
    def of(cls, layer: nn.Linear, scale: Tensor | None = None) -> _Linear:
        return cls(layer.weight, layer.bias, scale)

    def __call__(self, x: np.ndarray, skip: np.ndarray = NOTHING) -> np.ndarray:
        """Return the output [T, N] for x [T, K], plus `skip`."""
        out = np.empty((len(x), self._outputs), np.float32)
        self._convolve(x, (1, 1), self._part, skip, NOTHING, NOTHING, out)
        return out


class _Layer:
    """A transformer layer of the window transformer."""

    def __init__(self, block: TransformerBlock, context: int, rows: int) -> None:
        attention, feed = block.attention, block.feed_forward
        config = attention.config
        assert not config.qk_norm
        self._norms = [(_array(each.weight), each.eps) for each in (block.attention_norm, block.ffn_norm)]
        self._qkv = _Linear.of(attention.wqkv)
        self._out = _Linear.of(attention.wo, cast(LayerScale, block.attention_layer_scale).gamma)
        self._gated = _Linear(torch.cat((feed.w1.weight, feed.w3.weight)))
        self._down = _Linear.of(feed.w2, cast(LayerScale, block.ffn_layer_scale).gamma)
        self.past = np.zeros((rows, context, 2 * config.num_kv_heads, config.head_dim), np.float32)
        self.formats = [each.format for each in (self._qkv, self._out, self._gated, self._down)]

    def __call__(self, x: np.ndarray, row: int, start: int, rope: np.ndarray) -> np.ndarray:
        normed, past = np.empty_like(x), self.past[row]
        rms_norm(x, *self._norms[0], normed)
        qkv = self._qkv(normed).reshape(len(x), -1, past.shape[2])
        attended = np.empty((len(x), (qkv.shape[1] - past.shape[1]) * past.shape[2]), np.float32)
        kernel.window_attention(qkv, past, start, rope, attended)
        x = self._out(attended, x)
        rms_norm(x, *self._norms[1], normed)
        both = self._gated(normed)
        activated = np.empty((len(x), both.shape[1] // 2), np.float32)
        swiglu(both, activated)
        return self._down(activated, x)


class _Transformer(_Part):
    def __init__(self, transformer: WindowTransformer, rows: int) -> None:
        self._layers = [
            _Layer(cast(TransformerBlock, each), transformer.window - 1, rows) for each in transformer.layers
        ]
        self._norm, self._rope = (_array(transformer.norm.weight), transformer.norm.eps), _array(transformer.rope)
        self._input, self._output = (
            [] if each is None else [_Linear.of(each)] for each in (transformer.input_proj, transformer.output_proj)
        )
        self.pasts = [layer.past for layer in self._layers]
        self.formats = [each for layer in self._layers for each in layer.formats]
        self.formats += [each.format for each in self._input + self._output]

    def __call__(self, x: np.ndarray, row: int, start: int) -> np.ndarray:
        """Return the output for the steps x [F, C], of which the first has the position `start`."""
        for linear in self._input:
            x = linear(x)
        for layer in self._layers:
            x = layer(x, row, start, self._rope)
        rms_norm(x, *self._norm, x)
        for linear in self._output:
            x = linear(x)
        return x


class _Upsampling(_Part):
    """A transposed convolution that keeps the number of channels, then a ConvNeXt block."""

    def __init__(self, stage: Chain, rows: int) -> None:
        block = cast(ConvNeXtBlock, stage[1])
        self._convolution = _Convolution(cast(CausalConvTranspose1d, stage[0]), rows)
        conv, norm = block.dwconv.conv, block.norm
        parts = conv.weight.squeeze(1).t(), cast(Tensor, conv.bias), torch.stack((norm.weight, norm.bias))
        self._depthwise = *(_array(each) for each in parts), norm.eps
        self._up, self._down = _Linear.of(block.pwconv1), _Linear.of(block.pwconv2, block.gamma)
        self._past = np.zeros((rows, block.dwconv.context, conv.in_channels), np.float32)
        self.pasts = [*self._convolution.pasts, self._past]
        self.formats = [*self._convolution.formats, self._up.format, self._down.format]

    def __call__(self, x: np.ndarray, row: int) -> np.ndarray:
        """Return the output [T stride, C] for x [T, C]."""
        joined = self._convolution(self._convolution.join(x, row), self._past[row])
        new = joined[self._past.shape[1] :]
        normed = np.empty_like(new)
        kernel.depthwise(joined, *self._depthwise, normed)
        inner = self._up(normed)
        gelu(inner)
        return self._down(inner, new)


class _Link:
    """A convolution of the decoder, and the Snake before it."""

    def __init__(
        self, layer: nn.Module, snake: nn.Module | None, rows: int, *, skips: bool = False, keeps: bool = False
    ) -> None:
        """`keeps`: a later link adds the output to its own, without Snake; `skips`: this link adds such an output."""
        self.convolution = _Convolution(cast("CausalConv1d | CausalConvTranspose1d", layer), rows)
        self.skips, self.keeps, self.snake = skips, keeps, NOTHING
        if snake is not None:
            alpha, beta = cast(Snake, snake).factors
            self.snake = _array(torch.stack((alpha.flatten(), 1 / (beta.flatten() + 1e-9))))


class _Decoder(_Part):
    """The residual convolutions: [T, C] to samples [T']."""

    def __init__(self, decoder: Decoder, rows: int) -> None:
        first, *blocks, last_snake, last, self._bound = decoder.model
        links = [_Link(first, None, rows)]
        for block in blocks:
            snake, transposed, *units = cast(DecoderBlock, block).block
            links.append(_Link(transposed, snake, rows, keeps=True))
            for unit in units:
                first_snake, dilated, second_snake, pointwise = cast(ResidualUnit, unit).block
                links.append(_Link(dilated, first_snake, rows))
                links.append(_Link(pointwise, second_snake, rows, skips=True, keeps=unit is not units[-1]))
        links.append(_Link(last, last_snake, rows))
        # A convolution also applies the next link's Snake, to all steps that it computes for a step of its input.
        self._pairs = [
            (link, after.convolution.past, np.tile(after.snake, (1, link.convolution.stride)))
            for link, after in pairwise(links)
        ]
        self._first, self._last = links[0].convolution, links[-1].convolution
        self.pasts = [link.convolution.past for link in links]
        self.formats = [each for link in links for each in link.convolution.formats]

    def __call__(self, x: np.ndarray, row: int) -> Tensor:
        joined, total = self._first.join(x, row), NOTHING
        for link, past, snake in self._pairs:
            convolution, skip = link.convolution, total if link.skips else NOTHING
            if link.keeps and not link.skips:
                steps = (len(joined) - convolution.past.shape[1]) * convolution.stride
                total = np.empty((steps, convolution.channels), np.float32)
            keeps = total if link.keeps else NOTHING
            joined = convolution(joined, past[row], skip=skip, keeps=keeps, snake=snake)
        wave: Tensor = self._bound(torch.from_numpy(self._last(joined)[:, 0]))
        return wave


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().float().contiguous().numpy()
    return array


def check(codec: CausalCodec, streams: CompiledStreams) -> None:
    """Compare compiled calls with torch's, in row 0. Raises `RuntimeError` if they differ."""
    codes = torch.arange(3 * codec.num_codebooks).view(1, codec.num_codebooks, 3)
    with torch.inference_mode():
        plain = codec.decode(codes)
        compiled = torch.cat([streams.push(part, [0]) for part in codes.split(2, dim=-1)], dim=-1)
    if any(each.startswith(kernel.convolve_int16.__name__) for each in streams.formats):
        matches = bool((plain - compiled).square().mean() <= INT16_NOISE**2 * plain.square().mean())
    else:
        matches = is_close(plain, compiled, TOLERANCE)
    if not matches:
        raise RuntimeError("the compiled decoder of the codec does not match torch's")
