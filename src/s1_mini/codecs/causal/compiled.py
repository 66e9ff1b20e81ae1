"""A codec with a `FourierDecoder` as compiled calls on a CPU: weights and state for `kernels/compiled/fourier.py`.

It computes the same as `CausalCodec.push`, except for the last bits, for several streams at once. A stream's samples do
not depend on the other streams.
Shapes: n streams of a call, K codebooks, F frames, C channels, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from s1_mini.codecs.causal.codec import CausalCodec
from s1_mini.codecs.causal.fourier import MAX_AMPLITUDE, FourierDecoder, SpectralHead
from s1_mini.codecs.causal.layers import (
    CausalConv1d,
    CausalConvTranspose1d,
    Chain,
    ConvNeXtBlock,
    WindowTransformer,
    transposed_by_step,
)
from s1_mini.kernels.compiled import fourier as kernel
from s1_mini.kernels.compiled.layers import Layers
from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import is_close, pack
from s1_mini.layers.transformer import LayerScale, TransformerBlock

MODULE = kernel.__name__
TOLERANCE = 1e-3  # allowed difference from torch, relative to the largest sample


class CompiledDecoder:
    """Decodes up to `slots` streams; it copies the codec's decoding weights to another layout."""

    def __init__(self, codec: CausalCodec, slots: int) -> None:
        front, transformer, upsample, decoder = codec.parts
        assert isinstance(decoder, FourierDecoder)
        assert front is None
        assert transformer.input_proj is None
        first, *others, head, self._bound = decoder.model
        stages = [layer for stage in upsample for layer in cast(Chain, stage)] + [first, *others]
        self._rate, self._starts = codec.samples_per_frame, np.zeros(slots, np.int64)
        tables = codec.tables()
        self._table = _array(torch.cat(tables))
        sizes = np.array([len(table) for table in tables])
        self._last, self._first = sizes - 1, sizes.cumsum() - sizes
        self._transformer = _Transformer(transformer, slots)
        self._stages = [_stage_of(each, slots) for each in _grouped(stages)]
        self._head = _Head(cast(SpectralHead, head), slots)
        self.formats = sorted({each.format for each in (self._transformer, *self._stages, self._head)})

    def push(self, codes: np.ndarray, slots: Sequence[int], begins: Sequence[bool]) -> np.ndarray:
        """Decode the codes [n, K, F] of the next frames of the streams in `slots` to samples [n, T].

        `begins` says for each stream whether these are its first frames. The caller must check the streams' lengths.
        """
        count, _, frames = codes.shape
        inside = codes.transpose(0, 2, 1).clip(0, self._last) + self._first
        x = self._table[inside].sum(2, dtype=np.float32).reshape(count * frames, -1)
        at = np.array(slots, np.int64), np.array(begins, np.bool_)
        self._starts[at[0][at[1]]] = 0
        self._transformer(x, at[0], self._starts[at[0]])
        self._starts[at[0]] += frames
        for stage in self._stages:
            x = stage(x, *at)
        wave = np.empty((count, frames * self._rate), np.float32)
        self._head(x, *at, wave)
        bounded: np.ndarray = self._bound(torch.from_numpy(wave)).numpy()
        return bounded


class _Transformer:
    def __init__(self, transformer: WindowTransformer, slots: int) -> None:
        layers = [cast(TransformerBlock, layer) for layer in transformer.layers]
        attentions, feeds = [layer.attention for layer in layers], [layer.feed_forward for layer in layers]
        config = attentions[0].config
        assert not config.qk_norm
        self._layers = Layers(
            attention_norm=_stacked([layer.attention_norm.weight for layer in layers]),
            qkv=pack([each.wqkv.weight for each in attentions], [each.wqkv.bias for each in attentions]),
            head_norms=np.zeros((0, 2, config.head_dim), np.float32),
            out=_scaled([each.wo for each in attentions], [_scale(each.attention_layer_scale) for each in layers]),
            ffn_norm=_stacked([layer.ffn_norm.weight for layer in layers]),
            both=pack([torch.cat((each.w1.weight, each.w3.weight)) for each in feeds], [None] * len(feeds)),
            down=_scaled([each.w2 for each in feeds], [_scale(each.ffn_layer_scale) for each in layers]),
            num_heads=config.num_heads,
            eps=config.norm_eps,
        )
        self._norm, self._rope = _array(transformer.norm.weight), _array(transformer.rope)
        shape = len(layers), slots, transformer.window - 1, 2 * config.num_kv_heads, config.head_dim
        self._past = np.zeros(shape, np.float32)
        parts = self._layers.qkv, self._layers.out, self._layers.both, self._layers.down
        self.format = _format(kernel.window_layers, *parts)

    def __call__(self, x: np.ndarray, slots: np.ndarray, starts: np.ndarray) -> None:
        kernel.window_layers(x, self._layers, self._norm, self._past, slots, starts, self._rope)


class _Convolution:
    """A convolution, or a transposed convolution, whose output steps are those of one product."""

    def __init__(self, layer: CausalConv1d | CausalConvTranspose1d, slots: int) -> None:
        conv = layer.conv
        assert conv.bias is not None
        if isinstance(layer, CausalConvTranspose1d):
            self._steps = layer.stride
            weight = transposed_by_step(layer).flatten(0, 1).t()
        else:
            self._steps = 1
            weight = layer.conv.weight.transpose(1, 2).flatten(1)
        self._part = pack([weight.contiguous()], [conv.bias.repeat(self._steps)])
        self._past = np.zeros((slots, layer.context, conv.in_channels), np.float32)
        self.format = _format(kernel.convolve, self._part)

    def __call__(self, x: np.ndarray, slots: np.ndarray, begins: np.ndarray) -> np.ndarray:
        out = np.empty((len(x), self._part.bias.shape[1]), np.float32)
        kernel.convolve(x, self._part, self._past, slots, begins, out)
        return out.reshape(len(x) * self._steps, -1)


class _Blocks:
    def __init__(self, layers: Sequence[ConvNeXtBlock], slots: int) -> None:
        convs = [layer.dwconv.conv for layer in layers]
        self._weights = kernel.Blocks(
            depthwise=_stacked([conv.weight.squeeze(1).t() for conv in convs]),
            depthwise_bias=_stacked([cast(Tensor, conv.bias) for conv in convs]),
            norm=_stacked([torch.stack((layer.norm.weight, layer.norm.bias)) for layer in layers]),
            up=pack([layer.pwconv1.weight for layer in layers], [layer.pwconv1.bias for layer in layers]),
            down=_scaled([layer.pwconv2 for layer in layers], [layer.gamma for layer in layers]),
            eps=layers[0].norm.eps,
        )
        self._past = np.zeros((len(layers), slots, layers[0].dwconv.context, convs[0].in_channels), np.float32)
        self.format = _format(kernel.blocks, self._weights.up, self._weights.down)

    def __call__(self, x: np.ndarray, slots: np.ndarray, begins: np.ndarray) -> np.ndarray:
        padded = _padded(x)
        kernel.blocks(padded, len(x), self._weights, self._past, slots, begins)
        return padded[: len(x)]


class _Head:
    def __init__(self, head: SpectralHead, slots: int) -> None:
        self._size, self._eps = head.size, head.norm.eps
        self._norm = _array(torch.stack((head.norm.weight, head.norm.bias)))
        self._part = pack([head.linear.weight], [head.linear.bias])
        self._window = _array(head.window(torch.float32))
        self._past = np.zeros((slots, head.context, head.size), np.float32)
        self.format = _format(kernel.spectra, self._part)

    def __call__(self, x: np.ndarray, slots: np.ndarray, begins: np.ndarray, out: np.ndarray) -> None:
        padded = _padded(x)
        parts = np.empty((len(padded), self._size + 2), np.float32)
        kernel.spectra(padded, self._norm, self._part, self._eps, MAX_AMPLITUDE, parts)
        # numpy transforms row by row; torch's transforms might depend on the number of rows.
        windows = np.fft.irfft(parts[: len(x)].view(np.complex64), self._size).astype(np.float32, copy=False)
        kernel.overlap_add(windows, self._window, self._past, slots, begins, out)


def _grouped(layers: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """Return the layers in order, with consecutive ConvNeXt blocks in one group."""
    groups: list[list[nn.Module]] = []
    for layer in layers:
        if groups and isinstance(layer, ConvNeXtBlock) and isinstance(groups[-1][0], ConvNeXtBlock):
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def _stage_of(layers: Sequence[nn.Module], slots: int) -> _Convolution | _Blocks:
    if isinstance(layers[0], ConvNeXtBlock):
        return _Blocks(cast("Sequence[ConvNeXtBlock]", layers), slots)
    return _Convolution(cast("CausalConv1d | CausalConvTranspose1d", layers[0]), slots)


def _scaled(linears: Sequence[nn.Linear], factors: Sequence[Tensor]) -> Product:
    """Pack linear layers whose outputs are multiplied by `factors` [N]."""
    part = pack([each.weight for each in linears], [each.bias for each in linears])
    scale = _stacked(factors)
    return Product(part.weight, part.scale * scale, part.bias * scale)


def _scale(layer: nn.Module) -> Tensor:
    return cast(LayerScale, layer).gamma


def _padded(x: np.ndarray) -> np.ndarray:
    """Return a copy of x [R, C] with rows of zeros up to a multiple of the kernel's tile."""
    return np.pad(x, ((0, -len(x) % kernel.TILE), (0, 0)))


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().float().contiguous().numpy()
    return array


def _stacked(tensors: Sequence[Tensor]) -> np.ndarray:
    return _array(torch.stack(list(tensors)))


def _format(function: object, *parts: Product) -> str:
    return " ".join((function.__name__, *(part.weight.dtype.name for part in parts)))  # type: ignore[attr-defined]


def check(codec: CausalCodec, decoder: CompiledDecoder) -> None:
    """Compare compiled calls with torch's in slot 0. Raises `RuntimeError` if they differ."""
    codes = np.arange(3 * codec.num_codebooks, dtype=np.int64).reshape(1, codec.num_codebooks, 3)
    compiled = [decoder.push(codes[..., part], [0], [at == 0]) for at, part in enumerate((slice(2), slice(2, 3)))]
    with torch.inference_mode():
        plain = codec.decode(torch.from_numpy(codes))
    if not is_close(plain, torch.from_numpy(np.concatenate(compiled, axis=1)), TOLERANCE):
        raise RuntimeError("the compiled decoder of the codec does not match torch's")
