"""The HiFi-GAN generator over windows of frames: any windows of a mel give the samples that the whole of it gives.

Parameter names are those of the published checkpoint, weight norm folded as it is there.
Shapes: B rows, F frames, M mel bins, T samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.codecs.hifigan.window import Conv, Edges, Upsampling
from s1_mini.weights.fit import check_fit, fit, skeleton

LAST_SLOPE = 0.01  # before the last convolution, whatever the config says: torch's default, as the original
END_TAPS = 7  # of the first convolution and of the last


class Window(NamedTuple):
    """Steps that a layer gives, relative to the first new frame."""

    start: int
    stop: int


class Level(NamedTuple):
    """What one upsampling takes and gives, and what its blocks give."""

    rate: int  # steps a frame behind it
    upsampled: Window
    blocks: Window  # that go into the blocks
    out: Window


class Block(nn.Module):
    """Pairs of convolutions, each with a skip connection around it."""

    def __init__(self, channels: int, taps: int, dilations: tuple[int, ...], slope: float) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(Conv(channels, channels, taps, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(Conv(channels, channels, taps) for _ in dilations)
        self._slope = slope

    @property
    def reach(self) -> int:
        """Steps to either side that one of its outputs depends on."""
        return sum(conv.reach for conv in self._convs)

    @property
    def _convs(self) -> list[Conv]:
        return cast("list[Conv]", [*self.convs1, *self.convs2])

    def forward(self, x: Tensor, start: int, rate: int, edges: Edges) -> Tensor:
        """Return x, whose first step is `start`, less its reach at both ends."""
        for first, second in zip(self.convs1, self.convs2, strict=True):
            assert isinstance(first, Conv)
            assert isinstance(second, Conv)
            branch = edges.clear(first(F.leaky_relu(x, self._slope)), start + first.reach, rate)
            branch = second(F.leaky_relu(branch, self._slope))
            cut = first.reach + second.reach
            start += cut
            kept = x.narrow(edges.axis, cut, x.shape[edges.axis] - 2 * cut)
            x = edges.clear(branch + kept, start, rate)
        return x


class HifiGan(nn.Module):
    """One loaded vocoder."""

    def __init__(self, config: HifiGanConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.channels
        self.conv_pre = Conv(config.num_bins, channels, END_TAPS)
        self.upsampler, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for rate, taps in zip(config.rates, config.rate_taps, strict=True):
            self.upsampler.append(Upsampling(channels, channels // 2, taps, rate))
            channels //= 2
            for kernel, dilations in zip(config.block_taps, config.dilations, strict=True):
                self.resblocks.append(Block(channels, kernel, dilations, config.slope))
        self.conv_post = Conv(channels, 1, END_TAPS)
        self.mean, self.scale = nn.Parameter(torch.empty(config.num_bins)), nn.Parameter(torch.empty(config.num_bins))
        self.axis = 2
        self.reach = -self._plan(1)[0].start  # frames to either side that a sample may depend on

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    def prepare(self) -> None:
        """Lay channels out last, as the GPU's kernel needs them."""
        self.axis = 1
        for module in self.modules():
            if isinstance(module, Conv | Upsampling):
                module.prepare()

    def forward(self, frames: Tensor, edges: Edges) -> Tensor:
        """Return sound [B, T] of a window [B, F, M], or [B, M, F] with steps last, less `reach` frames at both ends.

        What lies outside of `edges` may be anything.
        """
        axis, (needed, levels) = self.axis, self._plan(frames.shape[self.axis] - 2 * self.reach)
        x = frames
        if self.config.normalizes:
            shape = (1, -1, 1) if axis == 2 else (1, 1, -1)
            x = (x - self.mean.view(shape)) / self.scale.view(shape)
        x = edges.clear(x.clone() if x is frames else x, needed.start, 1)
        start = needed.start + self.conv_pre.reach
        x, rate = self.conv_pre(x), 1
        for index, level in enumerate(levels):
            x = F.leaky_relu(edges.clear(x, start, rate), self.config.slope)
            x, rate = self.upsampler[index](x), level.rate
            x = x.narrow(axis, level.blocks.start - level.upsampled.start, level.blocks.stop - level.blocks.start)
            x = edges.clear(x, level.blocks.start, rate)
            x, start = self._blocks(x, index, level, edges), level.out.start
        x = self.conv_post(F.leaky_relu(edges.clear(x, start, rate), LAST_SLOPE))
        return torch.tanh(x).squeeze(3 - axis)

    @torch.inference_mode()
    def speak(self, frames: Tensor) -> Tensor:
        """Return the sound [T] of a whole mel [F, M]."""
        padded = F.pad(frames.to(self.mean), (0, 0, self.reach, self.reach)).unsqueeze(0)
        edges = Edges(0, len(frames), axis=self.axis)
        sound: Tensor = self(padded.transpose(1, 2) if self.axis == 2 else padded, edges)
        return sound[0]

    def _blocks(self, x: Tensor, index: int, level: Level, edges: Edges) -> Tensor:
        kinds, total = len(self.config.block_taps), None
        for block in self.resblocks[index * kinds : (index + 1) * kinds]:
            assert isinstance(block, Block)
            start, stop = level.out.start - block.reach, level.out.stop + block.reach
            given = x.narrow(edges.axis, start - level.blocks.start, stop - start)
            made = block(given, start, level.rate, edges)
            total = made if total is None else total + made
        assert total is not None
        return total / kinds

    def _plan(self, count: int) -> tuple[Window, list[Level]]:
        """Plan which frames are needed for the sound of `count`, and which steps each level makes of them."""
        rate, kinds = self.config.samples_per_frame, len(self.config.block_taps)
        need, levels = Window(-self.conv_post.reach, count * rate + self.conv_post.reach), []
        for index in reversed(range(len(self.upsampler))):
            upsampling, blocks = self.upsampler[index], self.resblocks[index * kinds : (index + 1) * kinds]
            assert isinstance(upsampling, Upsampling)
            reach = max(cast("Block", block).reach for block in blocks)
            wide = Window(need.start - reach, need.stop + reach)
            first, last = wide.start // upsampling.rate, -(-wide.stop // upsampling.rate)
            upsampled = Window(first * upsampling.rate, last * upsampling.rate)
            levels.append(Level(rate, upsampled, wide, need))
            need, rate = Window(first - upsampling.before, last + upsampling.after), rate // upsampling.rate
        reach = self.conv_pre.reach
        return Window(need.start - reach, need.stop + reach), levels[::-1]


def build_hifigan(
    config: HifiGanConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device, source: str
) -> HifiGan:
    """Build a vocoder of tensors by their published names. Raises `CheckpointMismatchError`."""
    with skeleton():
        vocoder = HifiGan(config)
    fit(vocoder, tensors, source=source, dtype=dtype, device=device)
    return vocoder


def check_hifigan(config: HifiGanConfig, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise `CheckpointMismatchError` unless tensors fit a config."""
    with skeleton():
        vocoder = HifiGan(config)
    check_fit(vocoder, tensors, source=source)
