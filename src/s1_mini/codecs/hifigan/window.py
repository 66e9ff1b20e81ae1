"""Convolutions that pad with zeros on both sides, over windows of a longer stream, exactly.

Such a layer sees as many zeros beyond either end of its stream as it has taps there, whatever the layer before would
have made of them. So a window keeps what lies outside the stream at zero, and every layer takes away from both its ends
what it has not seen enough of. Steps lie last on a CPU, and channels last on a GPU, where a kernel wants them so.
Shapes: B rows, C inputs, O outputs, K taps, T steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from s1_mini.kernels.convolution import convolve
from s1_mini.layers.convolution import conv1d, conv_transpose1d


class Edges:
    """Where the streams of a window's rows begin and end, in frames; frame 0 is the first that becomes sound.

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
    """A convolution of an odd number of taps; of T steps it gives those that have seen all that they must."""

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
