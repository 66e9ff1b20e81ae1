"""The speaker encoder of Base models, which computes a speaker vector from a recording at 24 kHz, in float32.

It consists of a log-mel spectrogram, then ECAPA-TDNN (Desplanques et al. 2020) without batch norms. Parameters have the
names of the checkpoint.
The spectrogram and all convolutions over time are computed block by block, with a `yield` after each block.
Shapes: T samples, M mel bins, F frames, C channels, D numbers of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.blocks import Blocks, result_of
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.layers.json_config import read_fields, size, sizes
from s1_mini.weights.fit import below_prefix, fit, skeleton

PREFIX = "speaker_encoder."  # prefix of the encoder's tensors in the model's file
SAMPLE_RATE = 24_000  # Hz; all Qwen3-TTS models have this rate and the same settings of the spectrogram
WINDOW, HOP = 1024, 256  # samples
BLOCK = 1024  # frames: 11 s of audio
SMALLEST_POWER, SMALLEST_MEL = 1e-9, 1e-5
SMALLEST_VARIANCE = 1e-12
LINEAR_HZ, BINS_PER_HZ = 1000.0, 3 / 200  # Slaney's mel scale is linear below 1000 Hz, and logarithmic above
LOG_STEP = 27 / math.log(6.4)

_size = partial(size, most=2**14)
_sizes = partial(sizes, most=2**14)


@dataclass(frozen=True, kw_only=True)
class SpeakerConfig:
    """`speaker_encoder_config` of a model's `config.json`. The defaults are the values in the original's code."""

    enc_dim: int = _size()  # D
    sample_rate: int = size(SAMPLE_RATE)
    mel_dim: int = _size(128)
    enc_channels: tuple[int, ...] = _sizes((512, 512, 512, 512, 1536))
    enc_kernel_sizes: tuple[int, ...] = _sizes((5, 3, 3, 3, 1))
    enc_dilations: tuple[int, ...] = _sizes((1, 2, 3, 4, 1))
    enc_attention_channels: int = _size(128)
    enc_res2net_scale: int = _size(8)
    enc_se_channels: int = _size(128)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SpeakerConfig:
        """Read the config. Raises `CheckpointMismatchError` for a missing or invalid value."""
        source = "config.json: speaker_encoder_config"
        config = cls(**read_fields(cls, values, source))
        channels = config.enc_channels
        if config.sample_rate != SAMPLE_RATE:
            raise CheckpointMismatchError(f"{source}.sample_rate={config.sample_rate} must be {SAMPLE_RATE}")
        if not 3 <= len(channels) == len(config.enc_kernel_sizes) == len(config.enc_dilations):
            raise CheckpointMismatchError(
                f"{source}: enc_channels, enc_kernel_sizes and enc_dilations must have the same length, at least 3"
            )
        if len(set(channels[:-1])) > 1 or channels[0] % config.enc_res2net_scale:
            raise CheckpointMismatchError(
                f"{source}: all enc_channels {channels} but the last must be equal, and a multiple of "
                f"enc_res2net_scale={config.enc_res2net_scale}"
            )
        return config


@cache
def _mel_bank(bins: int) -> Tensor:
    """Return triangular filters [bins, WINDOW / 2 + 1] of equal area on Slaney's mel scale, up to 12 kHz."""
    highest, start = SAMPLE_RATE / 2, LINEAR_HZ * BINS_PER_HZ
    top = start + math.log(highest / LINEAR_HZ) * LOG_STEP
    mels = torch.linspace(0, top, bins + 2, dtype=torch.float64)
    edges = torch.where(mels < start, mels / BINS_PER_HZ, LINEAR_HZ * ((mels - start) / LOG_STEP).exp())
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    hz = torch.linspace(0, highest, WINDOW // 2 + 1, dtype=torch.float64)
    bank = torch.minimum((hz - low) / (centre - low), (high - hz) / (high - centre)).clamp_min(0)
    return (2 / (high - low) * bank).float()


def log_mel(wave: Tensor, bins: int) -> Blocks[Tensor]:
    """Return the logarithmic mel spectrogram [M, F] of a wave [T] at 24 kHz."""
    padded = F.pad(wave.view(1, 1, -1), ((WINDOW - HOP) // 2,) * 2, mode="reflect")[0, 0]
    window, bank, parts = torch.hann_window(WINDOW, device=wave.device), _mel_bank(bins).to(wave.device), []
    whole = padded[: len(wave) // HOP * HOP + WINDOW - HOP]  # without the samples after the last full frame
    for part in _overlapping(whole, BLOCK * HOP, WINDOW - HOP):
        spectrum = torch.stft(part, WINDOW, HOP, WINDOW, window, center=False, return_complex=True)
        magnitude = (torch.view_as_real(spectrum).square().sum(-1) + SMALLEST_POWER).sqrt()
        parts.append((bank @ magnitude).clamp_min(SMALLEST_MEL).log())
        yield
    return torch.cat(parts, dim=-1)


def _overlapping(x: Tensor, size: int, overlap: int) -> Iterator[Tensor]:
    """Yield parts of x [..., T], each of up to `size` positions and the `overlap` with the next one."""
    for start in range(0, x.shape[-1] - overlap, size):
        yield x[..., start : start + size + overlap]


class TimeDelay(nn.Module):
    """A convolution with reflected ends, then ReLU: [1, C, F] to [1, C', F]."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
        self.overlap = dilation * (kernel - 1)

    def forward(self, x: Tensor) -> Blocks[Tensor]:
        before, parts = self.overlap // 2, []
        padded = F.pad(x, (before, self.overlap - before), mode="reflect") if self.overlap else x
        for part in _overlapping(padded, BLOCK, self.overlap):
            parts.append(self.conv(part).relu_())
            yield
        return torch.cat(parts, dim=-1)


class Res2Net(nn.Module):
    """Convolves groups of channels in turn, each after adding the result of the previous group.

    The first group is returned unchanged and is not added to the second.
    """

    def __init__(self, channels: int, kernel: int, dilation: int, scale: int) -> None:
        super().__init__()
        width = channels // scale
        self.blocks = nn.ModuleList(TimeDelay(width, width, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Blocks[Tensor]:
        first, *others = x.chunk(len(self.blocks) + 1, dim=1)
        parts = [first]
        for block, part in zip(self.blocks, others, strict=True):
            parts.append((yield from block(part if len(parts) == 1 else part + parts[-1])))
        return torch.cat(parts, dim=1)


class SqueezeExcitation(nn.Module):
    """Multiplies each channel by a factor that is computed from the means of all channels over time."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(channels, hidden, 1), nn.Conv1d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.conv2(self.conv1(x.mean(2, keepdim=True)).relu()).sigmoid()


class Block(nn.Module):
    """Res2Net between two pointwise convolutions, then squeeze-excitation, with a skip connection around all."""

    def __init__(self, config: SpeakerConfig, at: int) -> None:
        super().__init__()
        channels, dilation = config.enc_channels[at], config.enc_dilations[at]
        self.tdnn1, self.tdnn2 = TimeDelay(channels, channels, 1), TimeDelay(channels, channels, 1)
        self.res2net_block = Res2Net(channels, config.enc_kernel_sizes[at], dilation, config.enc_res2net_scale)
        self.se_block = SqueezeExcitation(channels, config.enc_se_channels)

    def forward(self, x: Tensor) -> Blocks[Tensor]:
        y = x
        for layer in (self.tdnn1, self.res2net_block, self.tdnn2):
            y = yield from layer(y)
        return x + self.se_block(y)


class StatisticsPooling(nn.Module):
    """Means and standard deviations over time, weighted by attention: [1, C, F] to [1, 2 C, 1]."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.tdnn, self.conv = TimeDelay(3 * channels, hidden, 1), nn.Conv1d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Blocks[Tensor]:
        plain, scores = self._statistics(x, torch.full_like(x[:, :1], 1 / x.shape[2])), []
        for part in x.split(BLOCK, dim=2):
            hidden = yield from self.tdnn(torch.cat((part, plain.expand(-1, -1, part.shape[2])), dim=1))
            scores.append(self.conv(hidden.tanh()))
        weights = torch.cat(scores, dim=2).softmax(2)
        yield
        return self._statistics(x, weights)

    @staticmethod
    def _statistics(x: Tensor, weights: Tensor) -> Tensor:
        mean = (weights * x).sum(2, keepdim=True)
        variance = (weights * (x - mean).square()).sum(2, keepdim=True)
        return torch.cat((mean, variance.clamp_min(SMALLEST_VARIANCE).sqrt()), dim=1)


class SpeakerEncoder(nn.Module):
    """One loaded speaker encoder."""

    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        self.config = config
        channels, last = config.enc_channels, len(config.enc_channels) - 1
        first = TimeDelay(config.mel_dim, channels[0], config.enc_kernel_sizes[0], config.enc_dilations[0])
        self.blocks = nn.ModuleList([first, *(Block(config, at) for at in range(1, last))])
        inputs, kernel, dilation = sum(channels[1:last]), config.enc_kernel_sizes[last], config.enc_dilations[last]
        self.mfa = TimeDelay(inputs, channels[last], kernel, dilation)
        self.asp = StatisticsPooling(channels[last], config.enc_attention_channels)
        self.fc = nn.Conv1d(2 * channels[last], config.enc_dim, 1)

    def forward(self, mel: Tensor) -> Blocks[Tensor]:
        """Return the vector [D] of a spectrogram [M, F]."""
        x, outputs = mel.unsqueeze(0), []
        for block in self.blocks:
            x = yield from block(x)
            outputs.append(x)
        x = yield from self.mfa(torch.cat(outputs[1:], dim=1))
        return self.fc((yield from self.asp(x)))[0, :, 0]

    def encode(self, wave: Tensor) -> Tensor:
        """Return the speaker vector [D] of a wave [T] of at least 0.1 s at 24 kHz."""
        return result_of(self.encode_by_blocks(wave))

    def encode_by_blocks(self, wave: Tensor) -> Blocks[Tensor]:
        """Do the work of `encode`, with a `yield` after each block of it; the generator returns the vector."""
        return (yield from self((yield from log_mel(wave, self.config.mel_dim))))


def build_speaker_encoder(
    config: SpeakerConfig, tensors: Mapping[str, Tensor], *, device: torch.device, source: str
) -> SpeakerEncoder:
    """Build the encoder from a model's tensors; only the encoder's own tensors are read.

    Raises `CheckpointMismatchError` if they do not fit the config.
    """
    encoder = skeleton(lambda: SpeakerEncoder(config))
    return fit(encoder, below_prefix(tensors, PREFIX), source=source, dtype=torch.float32, device=device)
