"""The HiFi-GAN generator over windows of frames: any windows of a mel give the samples that the whole of it gives.

Its convolutions pad with zeros on both sides. Such a layer sees as many zeros beyond either end of its stream as it has
taps there, whatever the layer before would have computed. So a window keeps the steps outside the stream at zero, and
every layer drops the steps at both ends of the window that lack context. Steps are the last axis on a CPU; on a GPU
channels are, as a kernel needs them. Parameter names are those of the published checkpoint, weight norm folded as
there.
Shapes: B rows, C inputs, O outputs, K taps, F frames, M mel bins, T steps or samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.kernels.convolution import convolve
from s1_mini.layers.convolution import conv1d, conv_transpose1d
from s1_mini.weights.fit import check_fit, fit, skeleton

LAST_SLOPE = 0.01  # before the last convolution, whatever the config says: torch's default, as the original
END_TAPS = 7  # of the first convolution and of the last


class Edges:
    """Where the streams of a window's rows begin and end, in frames; frame 0 is the first that becomes audio.

    For one row they are numbers, and what lies outside is set to zero where there is any; for several they are tensors
    [B], and nothing of it is known to the host, so that it can be captured.
    """

    def __init__(self, first: int | Tensor, last: int | Tensor, *, axis: int) -> None:
        """`last` is one past the last frame; `axis` is that of steps."""
        self.axis, self._first, self._last = axis, first, last
        self._inside: dict[int, tuple[int, Tensor]] = {}  # by steps a frame: the step it begins at

    def clear(self, x: Tensor, start: int, rate: int) -> Tensor:
        """Set to zero what lies outside of x, whose first step is `start`, at `rate` steps a frame; maybe in place."""
        if isinstance(self._first, Tensor):
            return torch.where(self._mask(x, start, rate), x, torch.zeros((), dtype=x.dtype, device=x.device))
        assert isinstance(self._last, int)
        length = x.shape[self.axis]
        before = min(max(0, self._first * rate - start), length)
        after = min(max(0, start + length - self._last * rate), length)
        if before:
            x.narrow(self.axis, 0, before).zero_()
        if after:
            x.narrow(self.axis, length - after, after).zero_()
        return x

    def _mask(self, x: Tensor, start: int, rate: int) -> Tensor:
        """Return the steps inside, [B, T, 1] or [B, 1, T]: computed once a rate, for the first and widest window."""
        assert isinstance(self._first, Tensor)
        length = x.shape[self.axis]
        if rate not in self._inside:
            steps = torch.arange(start, start + length, device=x.device)
            inside = (steps >= self._first.unsqueeze(1) * rate) & (steps < self._last.unsqueeze(1) * rate)  # type: ignore[union-attr]
            self._inside[rate] = start, inside.unsqueeze(3 - self.axis)
        begin, inside = self._inside[rate]
        return inside.narrow(self.axis, start - begin, length)


class Conv(nn.Module):
    """A convolution of an odd number of taps; of T steps it returns those with complete context."""

    def __init__(self, inputs: int, outputs: int, taps: int, dilation: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, taps))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.dilation, self.reach = dilation, dilation * (taps - 1) // 2
        self._by_tap: Tensor | None = None

    def prepare(self) -> None:
        """Lay out the weights for channels last."""
        self._by_tap = self.weight.permute(2, 1, 0).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Return what x [B, C, T], or [B, T, C], becomes, less `reach` steps at both ends."""
        if self._by_tap is not None:
            return convolve(x, self._by_tap, self.dilation) + self.bias
        return conv1d(x, self.weight, self.bias, stride=1, dilation=self.dilation, groups=1)


class Upsampling(nn.Module):
    """A transposed convolution; gives the steps of all inputs but the first `before` and the last `after`."""

    def __init__(self, inputs: int, outputs: int, taps: int, rate: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, taps))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.rate = rate
        self._cut = (taps - rate) // 2  # steps that the layer leaves out at its beginning
        self.before, self.after = -((self._cut - taps) // rate + 1), (rate - 1 + self._cut) // rate
        self._by_tap: Tensor | None = None

    def prepare(self) -> None:
        """Write it as a convolution with an output for each step of an input, for channels that lie last."""
        inputs, outputs, taps = self.weight.shape
        by_tap = self.weight.new_zeros(self.before + 1 + self.after, inputs, self.rate, outputs)
        for at in range(len(by_tap)):
            for step in range(self.rate):
                tap = step + self._cut - self.rate * (at - self.before)
                if 0 <= tap < taps:
                    by_tap[at, :, step] = self.weight[:, :, tap]
        self._by_tap = by_tap.flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return `rate` steps for each of x [B, C, T], or [B, T, C], but for those at its ends."""
        if self._by_tap is not None:
            spread = convolve(x, self._by_tap, 1)
            return spread.view(len(x), -1, len(self.bias)) + self.bias
        spread = conv_transpose1d(x, self.weight, self.bias, stride=self.rate)
        count = x.shape[-1] - self.before - self.after
        return spread.narrow(-1, self.rate * self.before + self._cut, self.rate * count)


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
        """Return audio [B, T] of a window [B, F, M], or [B, M, F] with steps last, less `reach` frames at both ends.

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
        """Return the audio [T] of a whole mel [F, M]."""
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
        """Plan which frames are needed for the audio of `count`, and which steps each level makes of them."""
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
