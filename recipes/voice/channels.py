"""The codec's operations, optimized for training: channels last, convolutions as matrix products or `units.py` kernels.

cuDNN transposes the layout of every one-dimensional convolution and chooses slow algorithms for few channels. For many
channels and few steps, torch's compiler fuses the operations between the products.
It uses the weights of a `Dac`, and processes only whole streams, as with `NoState`.
Shapes: B rows, T steps, I inputs, O outputs, K taps, S stride.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.voice import units
from s1_mini.codecs.causal.layers import (
    CausalConv1d,
    CausalConvTranspose1d,
    Chain,
    ConvNeXtBlock,
    DecoderBlock,
    ResidualUnit,
    Snake,
)
from s1_mini.codecs.dac.model import Dac, EncoderBlock
from s1_mini.codecs.stream_state import NoState
from s1_mini.kernels.backend import runs_triton

PIECE = 2048  # steps per product that computes a part of a weight's gradient


def _of_weight(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient [I, O] of a weight from x [N, I] and the gradient [N, O] of their product.

    The gradient is summed over pieces, because a single product over all steps would keep few multiprocessors busy.
    """
    pieces = _pieces(len(x))
    if pieces == 1:
        return (x.t() @ gradient).float()
    shares = x.view(pieces, -1, x.shape[1]).transpose(1, 2) @ gradient.view(pieces, -1, gradient.shape[1])
    return shares.sum(0, dtype=torch.float32)


def _pieces(length: int) -> int:
    """Return the smallest number of equal pieces of at most `PIECE` steps; 1 if there is no such division."""
    for pieces in range(-(-length // PIECE), min(length, 8 * (length // PIECE + 1)) + 1):
        if length % pieces == 0:
            return pieces
    return 1


class _Product(torch.autograd.Function):
    """x [N, I] times weight [I, O] plus bias [O]; x and weight share a dtype, weight and bias have float gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight = weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias.to(x.dtype), x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        (x, weight), gradient = ctx.saved_tensors, gradients[0].contiguous()
        of_x = gradient @ weight.t() if ctx.needs_input_grad[0] else None
        return of_x, _of_weight(x, gradient), gradient.sum(0, dtype=torch.float32)


class _Strided(torch.autograd.Function):
    """x [B, T, I] convolved with weight [O, I, 2 S] by steps of S: [B, T / S, O]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        outputs, inputs, taps = weight.shape
        blocks = x.contiguous().view(len(x), -1, taps // 2 * inputs)
        # [S I, 2 O]: the contributions of a block to the next output, and to its own.
        flat = weight.permute(2, 1, 0).reshape(2, -1, outputs).transpose(0, 1).flatten(1).to(x.dtype)
        ctx.save_for_backward(blocks, flat)
        ctx.shape = weight.shape
        parts = (blocks.flatten(0, 1) @ flat).view(*blocks.shape[:2], 2, outputs)
        total = parts[:, :, 1] + bias.to(x.dtype)
        total[:, 1:] += parts[:, :-1, 0]
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (blocks, flat), gradient = ctx.saved_tensors, gradients[0]
        outputs, inputs, taps = ctx.shape
        parts = torch.cat((F.pad(gradient[:, 1:], (0, 0, 0, 1)), gradient), dim=2).flatten(0, 1)
        of_x = (parts @ flat.t()).view(len(blocks), -1, inputs)
        of_flat = _of_weight(blocks.flatten(0, 1), parts)
        of_weight = of_flat.view(taps // 2, inputs, 2, outputs).permute(3, 1, 2, 0).reshape(ctx.shape)
        return of_x, of_weight, gradient.sum((0, 1), dtype=torch.float32)


class _Spread(torch.autograd.Function):
    """x [B, T, I] convolved with weight [I, O, 2 S], transposed: [B, T S, O]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        inputs, outputs, taps = weight.shape
        seen = torch.cat((x, F.pad(x[:, :-1], (0, 0, 1, 0))), dim=2).flatten(0, 1)
        flat = weight.view(inputs, outputs, 2, -1).permute(2, 0, 3, 1).reshape(2 * inputs, -1).to(x.dtype)
        ctx.save_for_backward(seen, flat)
        ctx.shapes = weight.shape, x.shape
        given = torch.addmm(bias.to(x.dtype).repeat(taps // 2), seen, flat)
        return given.view(len(x), -1, outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (seen, flat), gradient = ctx.saved_tensors, gradients[0].contiguous()
        (inputs, outputs, taps), shape = ctx.shapes
        blocks = gradient.view(len(seen), -1)
        now, before = (blocks @ flat.t()).view(*shape[:2], 2 * inputs).split(inputs, dim=2)
        of_flat = _of_weight(seen, blocks).view(2, inputs, taps // 2, outputs)
        of_weight = of_flat.permute(1, 3, 0, 2).reshape(inputs, outputs, taps)
        return now + F.pad(before[:, 1:], (0, 0, 0, 1)), of_weight, gradient.sum((0, 1), dtype=torch.float32)


class _ToOne(torch.autograd.Function):
    """x [B, T, I] convolved with weight [1, I, K]: [B, T], float."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        taps = weight.shape[2]
        flat = F.pad(weight[0], (0, -taps % 8)).to(x.dtype)
        ctx.save_for_backward(x, flat)
        ctx.taps = taps
        width, length = flat.shape[1], x.shape[1] + taps - 1
        parts = F.pad((x.flatten(0, 1) @ flat).view(*x.shape[:2], width), (0, 0, taps - 1, 0))
        seen = parts.as_strided((len(x), x.shape[1], taps), (length * width, width, width + 1))
        return seen.sum(-1, dtype=torch.float32) + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (x, flat), gradient, taps = ctx.saved_tensors, gradients[0], ctx.taps
        later = F.pad(gradient.to(x.dtype), (0, flat.shape[1] - 1)).unfold(1, flat.shape[1], 1)
        reached = later[:, :, :taps].flip(2)  # gradients of the outputs that a step contributed to, by tap
        reached = F.pad(reached, (0, flat.shape[1] - taps)).flatten(0, 1)
        of_weight = _of_weight(x.flatten(0, 1), reached)[:, :taps].unsqueeze(0)
        return (reached @ flat.t()).view_as(x), of_weight, gradient.sum().view(1)


def _halved(x: Tensor) -> Tensor:
    return x.bfloat16() if x.is_cuda else x


def convolve(x: Tensor, layer: nn.Conv1d) -> Tensor:
    """Convolve x [B, T, I] causally as `layer` does: [B, T / stride, O]."""
    weight, bias, (stride,), (dilation,) = layer.weight, layer.bias, layer.stride, layer.dilation
    assert bias is not None
    x = _halved(x)
    outputs, _, taps = weight.shape
    if outputs == 1:
        given: Tensor = _ToOne.apply(x, weight, bias)
        return given.unsqueeze(2)
    if taps == 2 * stride:
        strided: Tensor = _Strided.apply(x, weight, bias)
        return strided
    if taps == stride:
        seen = x.unflatten(1, (-1, stride)).flatten(2)
    else:
        padded = F.pad(x, (0, 0, (taps - 1) * dilation, 0))
        seen = torch.cat([padded[:, tap * dilation : tap * dilation + x.shape[1]] for tap in range(taps)], dim=2)
    return multiply(seen, weight.permute(2, 1, 0).flatten(0, 1), bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x [B, T, I] times weight [I, O] plus bias [O]; widths are made multiples of eight for the matrix units."""
    more, wider = -x.shape[2] % 8, -weight.shape[1] % 8
    if more or wider:
        x, weight, bias = F.pad(x, (0, more)), F.pad(weight, (0, wider, 0, more)), F.pad(bias, (0, wider))
    given: Tensor = _Product.apply(_halved(x).flatten(0, 1), weight, bias)
    given = given.view(*x.shape[:2], -1)
    return given[..., : given.shape[-1] - wider] if wider else given


def spread(x: Tensor, layer: CausalConvTranspose1d) -> Tensor:
    """Convolve x [B, T, I] as `layer` does: [B, T * stride, O]."""
    weight, bias, stride = layer.conv.weight, layer.conv.bias, layer.stride
    assert bias is not None
    x = _halved(x)
    _, outputs, taps = weight.shape
    if taps == 2 * stride:
        given: Tensor = _Spread.apply(x, weight, bias)
        return given
    flat = weight.permute(0, 2, 1).flatten(1)
    return multiply(x, flat, bias.repeat(stride)).unflatten(2, (stride, outputs)).flatten(1, 2)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """Snake of x [B, T, C]: x + sin²(αx) / α."""
    if runs_triton(x):
        return units.snake(x, alpha)
    flat = alpha.view(-1)
    wave = (flat * x.float()).sin()
    return (x.float() + wave * wave / (flat + 1e-9)).to(x.dtype)


def unit(x: Tensor, layer: ResidualUnit) -> Tensor:
    first, dilated, second, pointwise = layer.block
    if not runs_triton(x) or x.shape[2] > units.MOST_CHANNELS:
        return x + apply(layer.block, x)
    wide, narrow = cast(CausalConv1d, dilated).conv, cast(CausalConv1d, pointwise).conv
    assert wide.bias is not None
    assert narrow.bias is not None
    alphas = cast(Snake, first).alpha, cast(Snake, second).alpha
    return units.unit(
        x, alphas[0], wide.weight, wide.bias, alphas[1], narrow.weight, narrow.bias, wide.dilation[0]
    )  # fmt: skip


def convnext(x: Tensor, layer: ConvNeXtBlock) -> Tensor:
    """Apply a ConvNeXt block to x [B, T, C]; cuDNN is slow, or fails, with so few channels per group."""
    conv, length = layer.dwconv.conv, x.shape[1]
    assert conv.bias is not None
    padded = F.pad(x, (0, 0, layer.dwconv.context, 0))
    inner = conv.bias.to(x.dtype)
    for tap, weight in enumerate(conv.weight.squeeze(1).unbind(1)):
        inner = inner + padded[:, tap : tap + length] * weight
    inner = layer.gamma * layer.pwconv2(F.gelu(layer.pwconv1(layer.norm(inner))))
    return (x + inner).to(x.dtype)


def apply(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        if isinstance(layer, Chain):
            x = apply(layer, x)
        elif isinstance(layer, Snake):
            x = snake(x, layer.alpha)
        elif isinstance(layer, CausalConv1d):
            x = convolve(x, layer.conv)
        elif isinstance(layer, CausalConvTranspose1d):
            x = spread(x, layer)
        elif isinstance(layer, ResidualUnit):
            x = unit(x, layer)
        elif isinstance(layer, ConvNeXtBlock):
            x = convnext(x, layer)
        elif isinstance(layer, (EncoderBlock, DecoderBlock)):
            x = apply(layer.block, x)
        else:
            x = layer(x, NoState())
    return x


class ChannelsLast:
    """Encoder and decoder of a codec in training."""

    def __init__(self, codec: Dac, *, compiles: bool) -> None:
        self._quantizer = codec.quantizer
        encoding, decoding = list(codec.encoder.block), list(codec.decoder.model)
        width = codec.config.encoder_dim
        count = 1 + sum(width * 2**index <= units.MOST_CHANNELS for index in range(len(encoding) - 3))
        self._narrow, self._wide = encoding[:count], encoding[count:]
        width = codec.config.decoder_dim // 2
        count = 1 + sum(width // 2**index > units.MOST_CHANNELS for index in range(len(decoding) - 4))
        self._wide_first, self._narrow_last = decoding[:count], decoding[count:]
        self._encode_wide, self._decode_wide = self._latents_of, self._start
        if compiles:
            self._encode_wide = torch.compile(self._latents_of, dynamic=False, fullgraph=True)
            self._decode_wide = torch.compile(self._start, dynamic=False, fullgraph=True)

    def latents(self, waves: Tensor) -> Tensor:
        """Vectors [B, C, F] of samples [B, 1, T], ready to be quantised; the counterpart of `Dac.latents`."""
        return self._encode_wide(apply(self._narrow, waves.transpose(1, 2)))

    def synthesise(self, vectors: Tensor) -> Tensor:
        """Samples [B, 1, T] of quantised vectors [B, C, F]; the counterpart of `Dac.sound` after the post module."""
        return apply(self._narrow_last, self._decode_wide(vectors)).transpose(1, 2)

    def _latents_of(self, x: Tensor) -> Tensor:
        x = apply([*self._wide, self._quantizer.downsample], x).transpose(1, 2)
        return self._quantizer.pre_module(x, NoState())

    def _start(self, vectors: Tensor) -> Tensor:
        x = self._quantizer.post_module(vectors, NoState()).transpose(1, 2)
        return apply([self._quantizer.upsample, *self._wide_first], x)
