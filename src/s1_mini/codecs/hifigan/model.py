"""The HiFi-GAN generator over windows of frames: windows of a mel give the same samples as the whole mel.

The original's convolutions pad their input with zeros at both ends of the stream. In a window, every layer therefore
sets the steps outside the stream to zero before it convolves, and it drops the steps at both ends of the window that
lack context. The last axis is that of steps on a CPU; on a GPU it is that of channels, because the kernel needs it.
Parameters have the names of the published checkpoint, which has plain weights instead of weight norm.
Shapes: B rows, C inputs, O outputs, K taps, F frames, M mel bins, T steps or samples.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.kernels.convolution import convolve
from s1_mini.layers.convolution import conv1d, conv_transpose1d

LAST_SLOPE = 0.01  # slope before the last convolution, where the original also ignores the config
END_TAPS = 7  # taps of the first and the last convolution


class Edges:
    """Where the streams in a window begin and end, in frames relative to the first frame that becomes audio.

    For one row, the edges are numbers. For several rows, they are tensors [B] on the device, so that a graph can
    capture the call.
    """

    def __init__(self, first: int | Tensor, last: int | Tensor, *, axis: int) -> None:
        """`first` is the first frame of the stream, `last` the frame after its end; `axis` is the axis of steps."""
        self.axis, self._first, self._last = axis, first, last
        self._inside: dict[int, tuple[int, Tensor]] = {}  # key: steps per frame; value: first step and mask

    def clear(self, x: Tensor, start: int, rate: int) -> Tensor:
        """Return x with the steps outside the streams set to zero; x itself may be changed.

        The first step of x is `start`, at `rate` steps per frame.
        """
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
        """Return the mask of the steps inside the streams, [B, T, 1] or [B, 1, T].

        The mask is computed once per rate, for the first window, which is the widest.
        """
        assert isinstance(self._first, Tensor)
        length = x.shape[self.axis]
        if rate not in self._inside:
            steps = torch.arange(start, start + length, device=x.device)
            inside = (steps >= self._first.unsqueeze(1) * rate) & (steps < self._last.unsqueeze(1) * rate)  # type: ignore[union-attr]
            self._inside[rate] = start, inside.unsqueeze(3 - self.axis)
        begin, inside = self._inside[rate]
        return inside.narrow(self.axis, start - begin, length)


class Conv(nn.Module):
    """A convolution with an odd number of taps. It returns only the steps whose context is complete."""

    def __init__(self, inputs: int, outputs: int, taps: int, dilation: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, taps))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.dilation, self.reach = dilation, dilation * (taps - 1) // 2
        self._by_tap: Tensor | None = None

    def prepare(self) -> None:
        """Lay out the weights for channels-last inputs."""
        self._by_tap = self.weight.permute(2, 1, 0).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x [B, C, T], or [B, T, C] after `prepare`, without `reach` steps at both ends."""
        if self._by_tap is not None:
            return convolve(x, self._by_tap, self.dilation) + self.bias
        return conv1d(x, self.weight, self.bias, stride=1, dilation=self.dilation, groups=1)


class Upsampling(nn.Module):
    """A transposed convolution. It returns no steps for the first `before` and the last `after` inputs."""

    def __init__(self, inputs: int, outputs: int, taps: int, rate: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, taps))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.rate = rate
        self._cut = (taps - rate) // 2  # steps at the beginning that the original's padding removes
        self.before, self.after = -((self._cut - taps) // rate + 1), (rate - 1 + self._cut) // rate
        self._by_tap: Tensor | None = None

    def prepare(self) -> None:
        """Lay out the weights as a channels-last convolution with `rate` output steps per input."""
        inputs, outputs, taps = self.weight.shape
        by_tap = self.weight.new_zeros(self.before + 1 + self.after, inputs, self.rate, outputs)
        for at in range(len(by_tap)):
            for step in range(self.rate):
                tap = step + self._cut - self.rate * (at - self.before)
                if 0 <= tap < taps:
                    by_tap[at, :, step] = self.weight[:, :, tap]
        self._by_tap = by_tap.flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return `rate` steps for each step of x [B, C, T], or [B, T, C] after `prepare`, except at both ends."""
        if self._by_tap is not None:
            spread = convolve(x, self._by_tap, 1)
            return spread.view(len(x), -1, len(self.bias)) + self.bias
        spread = conv_transpose1d(x, self.weight, self.bias, stride=self.rate)
        count = x.shape[-1] - self.before - self.after
        return spread.narrow(-1, self.rate * self.before + self._cut, self.rate * count)


class Window(NamedTuple):
    """Range of a layer's output steps, relative to the first new frame."""

    start: int
    stop: int


class Level(NamedTuple):
    """The ranges of steps around one upsampling and the blocks after it."""

    rate: int  # steps per frame after the upsampling
    upsampled: Window  # outputs of the upsampling
    blocks: Window  # inputs of the blocks
    out: Window  # outputs of the blocks


class Block(nn.Module):
    """Pairs of convolutions, with a skip connection around each pair."""

    def __init__(self, channels: int, taps: int, dilations: tuple[int, ...], slope: float) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(Conv(channels, channels, taps, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(Conv(channels, channels, taps) for _ in dilations)
        self._slope = slope

    @property
    def reach(self) -> int:
        """Number of steps on each side of an output on which the output depends."""
        return sum(conv.reach for conv in self._convs)

    @property
    def _convs(self) -> list[Conv]:
        return cast("list[Conv]", [*self.convs1, *self.convs2])

    def forward(self, x: Tensor, start: int, rate: int, edges: Edges) -> Tensor:
        """Return the block's output for x, whose first step is `start`, without `reach` steps at both ends."""
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
        self.reach = -self._plan(1)[0].start  # frames on each side of a frame on which its samples depend

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    def prepare(self) -> None:
        """Switch to channels-last inputs, which the GPU's kernel needs."""
        self.axis = 1
        for module in self.modules():
            if isinstance(module, Conv | Upsampling):
                module.prepare()

    def forward(self, frames: Tensor, edges: Edges) -> Tensor:
        """Return the audio [B, T] of a window of frames, except the `reach` frames at each end.

        `frames` are [B, M, F], or [B, F, M] after `prepare`. Frames outside `edges` may have any values.
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
            window = x.narrow(edges.axis, start - level.blocks.start, stop - start)
            out = block(window, start, level.rate, edges)
            total = out if total is None else total + out
        assert total is not None
        return total / kinds

    def _plan(self, count: int) -> tuple[Window, list[Level]]:
        """Return the range of frames that the audio of `count` frames needs, and the ranges of all levels."""
        rate, kinds = self.config.samples_per_frame, len(self.config.block_taps)
        need, levels = Window(-self.conv_post.reach, count * rate + self.conv_post.reach), []
        for index in reversed(range(len(self.upsampler))):
            upsampling, blocks = self.upsampler[index], self.resblocks[index * kinds : (index + 1) * kinds]
            assert isinstance(upsampling, Upsampling)
            reach = max(cast("Block", block).reach for block in blocks)
            block_inputs = Window(need.start - reach, need.stop + reach)
            first, last = block_inputs.start // upsampling.rate, -(-block_inputs.stop // upsampling.rate)
            upsampled = Window(first * upsampling.rate, last * upsampling.rate)
            levels.append(Level(rate, upsampled, block_inputs, need))
            need, rate = Window(first - upsampling.before, last + upsampling.after), rate // upsampling.rate
        reach = self.conv_pre.reach
        return Window(need.start - reach, need.stop + reach), levels[::-1]
