"""Discriminators: what tells decoded speech from real speech, and thereby teaches the decoder.

Three look at complex spectra of several windows (Défossez et al. 2022), five at the wave folded by prime periods (Kong
et al. 2020). Waves are [B, 1, T]; every discriminator gives its verdict and the features of its layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

WINDOWS = (2048, 1024, 512)
PERIODS = (2, 3, 5, 7, 11)
SLOPE = 0.1


class _Judge(nn.Module):
    """Convolutions with leaky rectifiers between them; the last gives the verdict."""

    def __init__(self, layers: list[nn.Conv2d]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)

    def judge(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = []
        for layer in self.layers[:-1]:
            x = F.leaky_relu(layer(x), SLOPE)
            features.append(x)
        return self.layers[-1](x), features


class SpectrumJudge(_Judge):
    """Looks at real and imaginary parts of a spectrum."""

    def __init__(self, window: int, channels: int = 32) -> None:
        layers = [nn.Conv2d(2, channels, (3, 9), padding=(1, 4))]
        for dilation in (1, 2, 4):
            layers.append(nn.Conv2d(channels, channels, (3, 9), (1, 2), padding=(dilation, 4), dilation=(dilation, 1)))
        layers.append(nn.Conv2d(channels, channels, 3, padding=1))
        layers.append(nn.Conv2d(channels, 1, 3, padding=1))
        super().__init__(layers)
        self._size = window
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(window) / (window * 0.375) ** 0.5, persistent=False)

    def forward(self, wave: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(wave.device.type, enabled=False):
            spectrum = torch.stft(
                wave.squeeze(1).float(), self._size, self._size // 4, window=self.window, return_complex=True
            )
        both = torch.view_as_real(spectrum).permute(0, 3, 2, 1)  # [B, 2, T, F]
        return self.judge(both.contiguous(memory_format=torch.channels_last))


class PeriodJudge(_Judge):
    """Looks at samples a period apart."""

    def __init__(self, period: int, widths: tuple[int, ...] = (16, 64, 128, 256, 256)) -> None:
        layers, inputs = [], 1
        for index, width in enumerate(widths):
            stride = (3, 1) if index < len(widths) - 1 else (1, 1)
            layers.append(nn.Conv2d(inputs, width, (5, 1), stride, padding=(2, 0)))
            inputs = width
        layers.append(nn.Conv2d(inputs, 1, (3, 1), padding=(1, 0)))
        super().__init__(layers)
        self._period = period

    def forward(self, wave: Tensor) -> tuple[Tensor, list[Tensor]]:
        padded = F.pad(wave, (0, -wave.shape[-1] % self._period), "reflect")
        folded = padded.unflatten(2, (-1, self._period))
        return self.judge(folded.contiguous(memory_format=torch.channels_last))


class Adversary(nn.Module):
    """All judges."""

    def __init__(self) -> None:
        super().__init__()
        self.judges = nn.ModuleList([SpectrumJudge(window) for window in WINDOWS])
        self.judges.extend(PeriodJudge(period) for period in PERIODS)

    def loss(self, real: Tensor, decoded: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        """What the judges are to make small (least squares, Mao et al. 2017), and the features of `real`."""
        total, features = real.new_zeros(()), []
        both = torch.cat((real, decoded.detach()))
        for judge in self.judges:
            verdict, seen = judge(both)
            on_real, on_decoded = verdict.float().chunk(2)
            total = total + (1 - on_real).square().mean() + on_decoded.square().mean()
            features.append([feature.detach()[: len(real)] for feature in seen])
        return total, features

    def deceive(self, decoded: Tensor, features: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
        """What the decoder is to make small: verdicts, and the distance to the features of real speech."""
        verdicts, distance = decoded.new_zeros(()), decoded.new_zeros(())
        for judge, of_real in zip(self.judges, features, strict=True):
            verdict, seen = judge(decoded)
            verdicts = verdicts + (1 - verdict.float()).square().mean()
            for mine, real in zip(seen, of_real, strict=True):
                scale = real.abs().mean(dtype=torch.float32) + 1e-3  # so that no judge weighs more than another
                distance = distance + (mine - real).abs().mean(dtype=torch.float32) / scale
        return verdicts, distance
