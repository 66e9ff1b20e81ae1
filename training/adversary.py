"""Discriminators that learn to tell decoded speech from real.

By period (Kong et al. 2020) and by spectrum (Jang et al. 2021), with the least-squares losses of Mao et al. 2017 and
feature matching (Larsen et al. 2016).
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

PERIODS = (2, 3, 5, 7)  # samples; primes, so that no two see the same pattern
WINDOWS = (1024, 512, 256)  # samples

# The verdict on every spot, and the features of every layer.
Opinion = tuple[Tensor, list[Tensor]]


class PeriodDiscriminator(nn.Module):
    """Sees every `period`-th sample as a column."""

    def __init__(self, period: int, channels: tuple[int, ...] = (1, 16, 64, 128, 128)) -> None:
        super().__init__()
        self.period = period
        pairs = pairwise(channels)
        self.layers = nn.ModuleList(weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in pairs)
        self.layers.append(weight_norm(nn.Conv2d(channels[-1], channels[-1], (5, 1), 1, (2, 0))))
        self.verdict = weight_norm(nn.Conv2d(channels[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, wave: Tensor) -> Opinion:
        wave = F.pad(wave, (0, -wave.shape[-1] % self.period))
        return _judge(wave.unflatten(-1, (-1, self.period)), self.layers, self.verdict)


class SpectrumDiscriminator(nn.Module):
    """Sees real and imaginary part of the spectrum at one resolution."""

    def __init__(self, window: int, channels: int = 32) -> None:
        super().__init__()
        self.size = window
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        self.layers = nn.ModuleList([weight_norm(nn.Conv2d(2, channels, (3, 9), 1, (1, 4)))])
        for _ in range(3):
            self.layers.append(weight_norm(nn.Conv2d(channels, channels, (3, 9), (1, 2), (1, 4))))
        self.layers.append(weight_norm(nn.Conv2d(channels, channels, (3, 3), 1, (1, 1))))
        self.verdict = weight_norm(nn.Conv2d(channels, 1, (3, 3), 1, (1, 1)))

    def forward(self, wave: Tensor) -> Opinion:
        spectrum = torch.stft(
            wave.squeeze(1).float(), self.size, self.size // 4, window=self.window, return_complex=True
        )
        return _judge(torch.stack((spectrum.real, spectrum.imag), dim=1).transpose(2, 3), self.layers, self.verdict)


class Adversary(nn.Module):
    """All discriminators together."""

    def __init__(self) -> None:
        super().__init__()
        self.judges = nn.ModuleList([PeriodDiscriminator(period) for period in PERIODS])
        self.judges.extend(SpectrumDiscriminator(window) for window in WINDOWS)

    def forward(self, wave: Tensor) -> list[Opinion]:
        return [judge(wave) for judge in self.judges]


def own_loss(real: list[Opinion], decoded: list[Opinion]) -> Tensor:
    """What the adversary minimises: real should be 1, decoded 0."""
    parts = [(1 - r).square().mean() + d.square().mean() for (r, _), (d, _) in zip(_f(real), _f(decoded), strict=True)]
    return torch.stack(parts).sum()


def deception_loss(decoded: list[Opinion]) -> Tensor:
    """What the codec minimises: decoded should pass for real."""
    return torch.stack([(1 - verdict).square().mean() for verdict, _ in _f(decoded)]).sum()


def feature_loss(real: list[Opinion], decoded: list[Opinion]) -> Tensor:
    """What the codec minimises beside: the judges should feel the same about both (Larsen et al. 2016)."""
    parts = [
        F.l1_loss(d.float(), r.float())
        for (_, real_features), (_, decoded_features) in zip(real, decoded, strict=True)
        for r, d in zip(real_features, decoded_features, strict=True)
    ]
    return torch.stack(parts).sum()


def _f(opinions: list[Opinion]) -> list[Opinion]:
    return [(verdict.float(), features) for verdict, features in opinions]


def _judge(x: Tensor, layers: nn.ModuleList, verdict: nn.Module) -> Opinion:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return verdict(x), features
