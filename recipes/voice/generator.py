"""The teacher's generator for batches: channels last in half precision, with its norms fused.

The same sums as the package's own. Phases and spectra stay in float32. Shapes: B rows, C channels, T steps.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.voice.kernels import norm_snake

RATE = 24_000


class Convolution:
    """One convolution over time as a 2-D one of height 1: only those may be channels last. x is [B, C, 1, T]."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        self._layer = layer
        self._weight = layer.weight.unsqueeze(2).to(dtype).contiguous(memory_format=torch.channels_last)
        self._bias = None if layer.bias is None else layer.bias.to(dtype)
        self._transposes = isinstance(layer, nn.ConvTranspose1d)

    def __call__(self, x: Tensor) -> Tensor:
        stride, padding = (1, self._layer.stride[0]), (0, self._layer.padding[0])
        if self._transposes:
            return F.conv_transpose2d(x, self._weight, self._bias, stride, padding)
        return F.conv2d(x, self._weight, self._bias, stride, padding, (1, self._layer.dilation[0]))


class Block:
    """Three pairs of normed convolutions around skips, all moved by the style [B, S]."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        self._layers = [
            (Convolution(first, dtype), Convolution(second, dtype), before.fc, between.fc, a.flatten(), b.flatten())
            for first, second, before, between, a, b in zip(
                block.convs1, block.convs2, block.adain1, block.adain2, block.alpha1, block.alpha2, strict=True
            )
        ]

    def __call__(self, x: Tensor, style: Tensor) -> Tensor:
        residual = None  # is added where the next norm reads x anyway
        for first, second, before, between, alpha, other_alpha in self._layers:
            y = first(norm_snake(x, before(style), alpha, residual))
            x, residual = second(norm_snake(y, between(style), other_alpha)), x
        assert residual is not None
        return x.add_(residual)


class Generator(nn.Module):
    """Takes the place of `decoder.generator`; has its weights."""

    def __init__(self, original: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype, self._sine, self._stft = dtype, original.m_source.l_sin_gen, original.stft
        self._merge, self._num_kernels = original.m_source.l_linear, original.num_kernels
        self._ups = [Convolution(layer, dtype) for layer in original.ups]
        self._noise_convs = [Convolution(layer, dtype) for layer in original.noise_convs]
        self._noise_blocks = [Block(block, dtype) for block in original.noise_res]
        self._blocks = [Block(block, dtype) for block in original.resblocks]
        self._last, self._bins = Convolution(original.conv_post, dtype), original.post_n_fft // 2 + 1

    def forward(self, x: Tensor, style: Tensor, f0: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return self._speak(x, style.float(), f0)

    def _speak(self, x: Tensor, style: Tensor, f0: Tensor) -> Tensor:
        source, x = self._wide(self._source(f0.float())), self._wide(x)
        for index, up in enumerate(self._ups):
            side = self._noise_blocks[index](self._noise_convs[index](source), style)
            x = up(F.leaky_relu(x, 0.1))
            if index == len(self._ups) - 1:
                x = torch.cat((x[..., 1:2], x), dim=3).contiguous(memory_format=torch.channels_last)
            x = x.add_(side)
            blocks = self._blocks[index * self._num_kernels : (index + 1) * self._num_kernels]
            total = blocks[0](x, style)
            for block in blocks[1:]:
                total.add_(block(x, style))
            x = total.div_(self._num_kernels)
        spectrum = self._last(F.leaky_relu(x)).squeeze(2).float()
        return self._stft.inverse(spectrum[:, : self._bins].exp(), spectrum[:, self._bins :].sin())

    def _wide(self, x: Tensor) -> Tensor:
        return x.to(self._dtype).unsqueeze(2).contiguous(memory_format=torch.channels_last)

    def _source(self, f0: Tensor) -> Tensor:
        """The spectrum of harmonics of F0 [B, T] plus noise: magnitudes, then angles."""
        sine = self._sine
        harmonics = torch.arange(1, sine.dim + 1, device=f0.device)
        turns = (f0.unsqueeze(1) * harmonics.view(1, -1, 1) / RATE) % 1
        phase = turns.double().cumsum(2) * (2 * torch.pi * sine.upsample_scale)
        phase = F.interpolate(phase.float(), scale_factor=float(sine.upsample_scale), mode="linear")
        voiced = (f0 > sine.voiced_threshold).float().repeat_interleave(sine.upsample_scale, dim=1).unsqueeze(1)
        noise = torch.randn_like(phase) * (voiced * sine.noise_std + (1 - voiced) * sine.sine_amp / 3)
        waves = phase.sin() * sine.sine_amp * voiced + noise
        merged = torch.einsum("bht,h->bt", waves, self._merge.weight[0].float()) + self._merge.bias.float()
        return torch.cat(self._stft.transform(merged.tanh()), dim=1)
