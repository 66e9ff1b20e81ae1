"""Losses of the codec: log-mel distances at several resolutions (Kumar et al. 2023, DAC), and discriminators.

Three discriminators use complex spectra of several windows (Défossez et al. 2022), and five the wave folded by prime
periods (Kong et al. 2020). In the code, a discriminator is a judge, and its output a verdict. Waves are [B, 1, T].
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from recipes.voice.passes import distance, leaky, squares

Scale = tuple[int, int, float]  # window length in samples, mel bands and weight; hops are a quarter window


class MelLoss(nn.Module):
    """Mean absolute difference of log10 mel amplitudes, weighted and summed over `scales`; waves are [B, 1, T].

    Amplitudes below `floor`, which are inaudible, count as `floor`.
    """

    def __init__(self, sample_rate: int, scales: Sequence[Scale], floor: float, *, compiles: bool = False) -> None:
        super().__init__()
        self._scales, self._floor = tuple(scales), floor
        for window, bands, _ in scales:
            self.register_buffer(f"window_{window}", torch.hann_window(window), persistent=False)
            self.register_buffer(f"bank_{window}", mel_bank(sample_rate, window, bands), persistent=False)
        self._compare: Callable[[list[Tensor]], Tensor] = self._distance
        if compiles:
            self._compare = torch.compile(self._distance, dynamic=False, fullgraph=True)

    def forward(self, expected: Tensor, decoded: Tensor) -> Tensor:
        both = torch.cat((expected, decoded)).squeeze(1).float()
        spectra = []
        for size, _, _ in self._scales:
            window = getattr(self, f"window_{size}")
            spectra.append(torch.stft(both, size, size // 4, window=window, return_complex=True))
        return self._compare([torch.view_as_real(spectrum) for spectrum in spectra])

    def _distance(self, spectra: list[Tensor]) -> Tensor:
        total = spectra[0].new_zeros(())
        for spectrum, (size, _, weight) in zip(spectra, self._scales, strict=True):
            amplitude = (spectrum.square().sum(-1) + 1e-10).sqrt()
            mel, other = (getattr(self, f"bank_{size}") @ amplitude).clamp_min(self._floor).log10().chunk(2)
            total = total + weight * (mel - other).abs().mean()
        return total


def mel_bank(sample_rate: int, window: int, bands: int) -> Tensor:
    """Triangles, equally wide on the mel scale (O'Shaughnessy 1987): [bands, window / 2 + 1]."""
    mels = np.linspace(0.0, 2595.0 * np.log10(1.0 + sample_rate / 2 / 700.0), bands + 2)
    edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    bins = np.linspace(0.0, sample_rate / 2, window // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise = (bins - low) / (centre - low + 1e-9)
    fall = (high - bins) / (high - centre + 1e-9)
    return torch.from_numpy(np.maximum(0.0, np.minimum(rise, fall)).astype(np.float32))


WINDOWS = (2048, 1024, 512)
PERIODS = (2, 3, 5, 7, 11)
SPECTRAL_WIDTH, WIDTHS = 32, (16, 64, 128, 256, 256)  # channels of the layers, powers of two

Features = list[Tensor]
Weights = list[Tensor]


class _Judge(nn.Module):
    """A discriminator: convolutions with leaky rectifiers between them; the last one outputs the verdict."""

    def __init__(self, layers: list[nn.Conv2d]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)
        self._convolutions = layers  # the same layers, as a list with a type

    @abstractmethod
    def prepare(self, wave: Tensor) -> Tensor:
        """Return the input of the layers for a wave: [B, C, H, W], channels last."""

    def weights(self) -> Weights:
        """The layers' weights; the last one gets seven additional empty outputs, because cuDNN is slow with one."""
        *weights, last = [layer.weight for layer in self._convolutions]
        weights.append(F.pad(last, (0, 0, 0, 0, 0, 0, 0, 7)))
        dtype = torch.bfloat16 if last.is_cuda else last.dtype
        return [weight.to(dtype, memory_format=torch.channels_last) for weight in weights]

    def judge(self, wave: Tensor, weights: Weights) -> tuple[Tensor, Features]:
        """Return the verdict, and the outputs of the layers before the last one."""
        x = self.prepare(wave).to(weights[0].dtype)
        features: Features = []
        for layer, weight in zip(self._convolutions, weights, strict=True):
            assert layer.bias is not None
            x = F.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation)
            if len(features) == len(weights) - 1:
                x = x[:, :1].float() + layer.bias
            else:
                x = leaky(x, layer.bias)
                features.append(x)
        return x, features


class SpectrumJudge(_Judge):
    """A discriminator of the real and imaginary parts of a spectrum."""

    def __init__(self, window: int, channels: int) -> None:
        layers = [nn.Conv2d(2, channels, (3, 9), (1, 2), padding=(1, 4))]
        for dilation in (1, 2, 4):
            layers.append(nn.Conv2d(channels, channels, (3, 9), (1, 2), padding=(dilation, 4), dilation=(dilation, 1)))
        layers.append(nn.Conv2d(channels, channels, 3, padding=1))
        layers.append(nn.Conv2d(channels, 1, 3, padding=1))
        super().__init__(layers)
        self._size = window
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(window) / (window * 0.375) ** 0.5, persistent=False)

    def prepare(self, wave: Tensor) -> Tensor:
        """Spectra [B, 2, T, F]."""
        spectrum = torch.stft(wave.squeeze(1), self._size, self._size // 4, window=self.window, return_complex=True)
        return torch.view_as_real(spectrum).permute(0, 3, 2, 1).contiguous(memory_format=torch.channels_last)


class PeriodJudge(_Judge):
    """A discriminator of samples that are a period apart."""

    def __init__(self, period: int, widths: tuple[int, ...]) -> None:
        layers, inputs = [], 1
        for index, width in enumerate(widths):
            stride = (3, 1) if index < len(widths) - 1 else (1, 1)
            layers.append(nn.Conv2d(inputs, width, (5, 1), stride, padding=(2, 0)))
            inputs = width
        layers.append(nn.Conv2d(inputs, 1, (3, 1), padding=(1, 0)))
        super().__init__(layers)
        self._period = period

    def prepare(self, wave: Tensor) -> Tensor:
        """Folded waves [B, 1, T / period, period]."""
        padded = F.pad(wave, (0, -wave.shape[-1] % self._period), "reflect")
        return padded.unflatten(2, (-1, self._period)).contiguous(memory_format=torch.channels_last)


class Adversary(nn.Module):
    """All discriminators; `breadth` multiplies their numbers of channels."""

    def __init__(self, breadth: int = 1) -> None:
        super().__init__()
        self._all: list[_Judge] = [SpectrumJudge(window, SPECTRAL_WIDTH * breadth) for window in WINDOWS]
        widths = tuple(width * breadth for width in WIDTHS)
        self._all.extend(PeriodJudge(period, widths) for period in PERIODS)
        self.judges = nn.ModuleList(self._all)
        self._weights: list[Weights] = []  # weights used by the last `loss`

    def loss(self, real: Tensor, decoded: Tensor) -> tuple[Tensor, Features]:
        """Return the discriminators' loss (least squares, Mao et al. 2017), and the features of `real`."""
        both = torch.cat((real, decoded)).detach()
        verdicts, all_features = [], []
        self._weights = [judge.weights() for judge in self._all]
        for judge, weights in zip(self._all, self._weights, strict=True):
            verdict, features = judge.judge(both, weights)
            verdicts.append(verdict)
            all_features += [feature.detach()[: len(real)] for feature in features]
        return squares(verdicts, (1.0, 0.0)), all_features

    def deceive(self, decoded: Tensor, features: Features) -> tuple[Tensor, Tensor]:
        """Return the decoder's adversarial loss, and its distance to the features of real speech.

        The discriminators have the weights of the last `loss`, and get no gradients.
        """
        verdicts, all_features = [], []
        for judge, weights in zip(self._all, self._weights, strict=True):
            verdict, mine = judge.judge(decoded, [weight.detach() for weight in weights])
            verdicts.append(verdict)
            all_features += mine
        return squares(verdicts, (1.0,)), distance(all_features, features)
