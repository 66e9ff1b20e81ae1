"""What a network of Encodec remembers between two chunks, so that any chunking gives the numbers of one call.

A convolution sees some inputs before its new ones. At a stream's beginning these are its first inputs, mirrored; if
there are too few, zeros follow them. A strided one also sees the end mirrored, up to a whole step. So a stream that
ends within its chunk says how long it is, and what fills the chunk up changes nothing.
Shapes: R rows in memory, n rows of a call, C channels, T steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Whole:
    """Every call is a whole stream: nothing is remembered."""

    def mirror(self, _layer: nn.Module, x: Tensor, context: int, stride: int) -> Tensor:
        """Return x [n, C, T] with `context` inputs before it, and after it what makes T a multiple of `stride`."""
        after = -x.shape[-1] % stride
        if context == after == 0:
            return x
        missing = max(0, max(context, after) + 1 - x.shape[-1])
        if missing:
            x = F.pad(x, (0, missing))
        x = F.pad(x, (context, after), mode="reflect")
        return x[..., : x.shape[-1] - missing]

    def extend(self, _layer: nn.Module, x: Tensor, context: int) -> Tensor:
        """Return x [n, C, T] with `context` zeros before it."""
        return F.pad(x, (context, 0))

    def grow(self, factor: int) -> None:
        """Take note that steps from here on are `factor` times as many."""

    def recur(self, lstm: nn.LSTM, x: Tensor) -> Tensor:
        """Return what the LSTM makes of x [T, n, C], from zeros on."""
        return lstm(x)[0]


class Memory:
    """The past of R streams: tensors made at first use and changed in place afterwards."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tensors: dict[tuple[nn.Module, str], Tensor] = {}

    def get(self, layer: nn.Module, name: str, like: Tensor, *shape: int) -> Tensor:
        """Return what is remembered for a layer [R, *shape]."""
        past = self.tensors.get((layer, name))
        if past is None:
            past = self.tensors[layer, name] = like.new_zeros(self.rows, *shape)
        return past

    @property
    def num_bytes(self) -> int:
        return sum(past.nbytes for past in self.tensors.values())


class Carry(Whole):
    """The next chunk of some streams.

    `fresh` [n] is true for rows that begin anew. `lengths` [n] are the steps that count of the network's input: all,
    but where a stream ends. `chosen` [n] says which row of the memory each row is; None means all. All of it lies on
    the device, so that a graph can be made of it. Nothing is remembered before `commit`.
    """

    def __init__(self, memory: Memory, fresh: Tensor, lengths: Tensor, chosen: Tensor | None = None) -> None:
        self._memory, self._fresh, self._lengths, self._chosen = memory, fresh, lengths, chosen
        self._new: list[tuple[Tensor, Tensor]] = []  # what is remembered, and what shall be

    def mirror(self, layer: nn.Module, x: Tensor, context: int, stride: int) -> Tensor:
        """Return x [n, C, T] with its past before it; T is a multiple of `stride`."""
        if context:
            x = self._join(layer, x, context, self._beginning(x, context))
        if stride > 1:
            self._mirror_end(x, context, stride)
            self._lengths = (self._lengths + stride - 1) // stride
        return x

    def extend(self, layer: nn.Module, x: Tensor, context: int) -> Tensor:
        """Return x [n, C, T] with its past before it: zeros where a stream begins."""
        return self._join(layer, x, context, x.new_zeros(()))

    def grow(self, factor: int) -> None:
        """Take note that steps from here on are `factor` times as many."""
        self._lengths = self._lengths * factor

    def recur(self, lstm: nn.LSTM, x: Tensor) -> Tensor:
        """Return what the LSTM makes of x [T, n, C], going on with its rows' states."""
        pasts = [self._memory.get(lstm, name, x, lstm.num_layers, lstm.hidden_size) for name in ("h", "c")]
        begun = self._fresh[:, None, None]
        states = [self._gather(past).masked_fill(begun, 0).transpose(0, 1).contiguous() for past in pasts]
        out, ends = lstm(x, tuple(states))
        self._new += [(past, end.transpose(0, 1)) for past, end in zip(pasts, ends, strict=True)]
        return out

    def commit(self) -> None:
        """Remember the ends of all inputs."""
        for past, new in self._new:
            if self._chosen is None:
                past.copy_(new)
            else:
                past[self._chosen] = new
        self._new.clear()

    def _join(self, layer: nn.Module, x: Tensor, context: int, beginning: Tensor) -> Tensor:
        past = self._memory.get(layer, "", x, x.shape[1], context)
        # Chosen, not multiplied: a row may have been left with numbers that are not finite.
        before = torch.where(self._fresh[:, None, None], beginning, self._gather(past))
        joined = torch.cat((before, x), dim=-1)
        self._new.append((past, joined[..., joined.shape[-1] - context :].clone()))
        return joined

    def _gather(self, past: Tensor) -> Tensor:
        return past if self._chosen is None else past[self._chosen]

    def _beginning(self, x: Tensor, context: int) -> Tensor:
        """The first inputs of x mirrored, without the very first: [n, C, context]."""
        first = x[..., 1 : context + 1]
        first = F.pad(first, (0, context - first.shape[-1])) if first.shape[-1] < context else first
        is_over = torch.arange(1, context + 1, device=x.device) >= self._lengths[:, None]
        return first.masked_fill(is_over[:, None], 0).flip(-1)

    def _mirror_end(self, joined: Tensor, context: int, stride: int) -> None:
        """Write behind the end of each row what makes its last step whole; what lies farther behind is nothing."""
        end, offsets = context + self._lengths[:, None], torch.arange(stride - 1, device=joined.device)
        to, source = end + offsets, end - 2 - offsets
        is_inside = to < joined.shape[-1]
        to, source = (torch.where(is_inside, each, 0) for each in (to, source))  # else the first stays as it is
        is_short = self._fresh & (self._lengths <= context)
        rows = (-1, joined.shape[1], -1)
        values = joined.gather(-1, source[:, None].expand(*rows))
        values = values.masked_fill((is_short[:, None] & is_inside)[:, None], 0)
        joined.scatter_(-1, to[:, None].expand(*rows), values)
