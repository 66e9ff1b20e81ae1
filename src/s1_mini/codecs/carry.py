"""What a causal network remembers between two chunks, so that any chunking gives the samples of one call.

A causal layer depends on a fixed number of past inputs. Each layer asks the carry to put those before its new
input; at the start they are zeros, which is what a causal layer pads with anyway. So there is one code path for
whole and streamed work. Tensors are made at first use and changed in place afterwards (graph-safe).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# A layer and, where it keeps more than one thing, which.
CarryKey = tuple[object, str]


class Carry:
    """Past inputs of every layer for B rows."""

    snake: Callable[[Tensor, Tensor], Tensor] | None = (
        None  # activation to use instead of torch's, as compiled for a CPU
    )

    def __init__(self) -> None:
        self._past: dict[CarryKey, Tensor] = {}

    def extend(self, key: CarryKey, new: Tensor, context: int, axis: int = -1) -> Tensor:
        """Return `new` with the last `context` inputs before it on `axis`, and remember its own end."""
        if context == 0:
            return new
        past = self._past.get(key)
        if past is None:
            shape = list(new.shape)
            shape[axis] = context
            past = self._past[key] = new.new_zeros(shape)
        joined = torch.cat((past, new), dim=axis)
        past.copy_(joined.narrow(axis, joined.shape[axis] - context, context))
        return joined

    def advance(self, key: CarryKey, rows: int, count: int, device: torch.device) -> Tensor:
        """Count `count` more inputs and give how many each row had before: int64 [rows]."""
        seen = self._past.get(key)
        if seen is None:
            seen = self._past[key] = torch.zeros(rows, dtype=torch.int64, device=device)
        before = seen.clone()
        seen.add_(count)
        return before

    def reset(self, row: int) -> None:
        """Begin a new stream in one row."""
        for past in self._past.values():
            past[row] = 0

    @property
    def num_bytes(self) -> int:
        return sum(past.numel() * past.element_size() for past in self._past.values())


class CarryRows(Carry):
    """Some rows of the carry of many streams: those that have something to decode now.

    `chosen` [n] says which row of the whole each row of the input is; the others are left as they are. Given as a
    tensor on the device, or as a slice, together with `fresh` [n], true for rows that begin anew, nothing of it is
    known to the host: so it can be captured in a CUDA graph. Nothing is remembered before `commit`, so that work that
    fails on the way has changed nothing.
    """

    def __init__(
        self,
        whole: Carry,
        num_rows: int,
        chosen: Sequence[int] | Tensor | slice,
        device: torch.device,
        fresh: Tensor | None = None,
    ) -> None:
        self._past = whole._past
        self._num_rows = num_rows
        self._fresh = fresh
        self._new: list[tuple[Tensor, Tensor]] = []  # what is to be remembered, and where
        self._chosen: slice | Tensor
        if isinstance(chosen, Tensor | slice):
            self._chosen = chosen
        elif len(chosen) == 1:  # then nothing is gathered: a slice is looked at where it lies
            self._chosen = slice(chosen[0], chosen[0] + 1)
        else:
            self._chosen = torch.tensor(chosen, device=device)

    def extend(
        self, key: CarryKey, new: Tensor, context: int, axis: int = -1, *, beginning: Tensor | None = None
    ) -> Tensor:
        """Return `new` with the last `context` inputs of its rows before it, and remember its own end.

        `beginning` is the past of rows that begin anew: zeros, if it is None.
        """
        if context == 0:
            return new
        shape = list(new.shape)
        shape[axis] = context
        past = self._remembered(key, new, shape[1:])
        joined = torch.cat((self._gather(past, beginning), new), dim=axis)
        end = joined.narrow(axis, joined.shape[axis] - context, context)
        self._new.append((past, end.clone()))  # a copy, so that the whole is let go of
        return joined

    def advance(self, key: CarryKey, rows: int, count: int, device: torch.device) -> Tensor:
        """Count `count` more inputs of the chosen rows and give how many each had before: int64 [n]."""
        seen = self._past.get(key)
        if seen is None:
            seen = self._past[key] = torch.zeros(self._num_rows, dtype=torch.int64, device=device)
        before = self._gather(seen).clone()
        self._new.append((seen, before + count))
        return before

    def commit(self) -> None:
        """Remember the ends of all inputs."""
        for past, new in self._new:
            past[self._chosen] = new
        self._new.clear()

    def _remembered(self, key: CarryKey, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the past [rows, *shape] of a key, zeros at first."""
        past = self._past.get(key)
        if past is None:
            past = self._past[key] = like.new_zeros(self._num_rows, *shape)
        return past

    def _gather(self, past: Tensor, beginning: Tensor | None = None) -> Tensor:
        gathered = past[self._chosen]
        if self._fresh is None:
            return gathered
        # Not multiplied: a row may have been left with numbers that are not finite.
        fresh = self._fresh.view(-1, *[1] * (past.dim() - 1))
        return gathered.masked_fill(fresh, 0) if beginning is None else torch.where(fresh, beginning, gathered)


class NoCarry(Carry):
    """Every call is a whole stream: the past is zeros, nothing is remembered. For training, and for single calls."""

    def extend(self, key: CarryKey, new: Tensor, context: int, axis: int = -1) -> Tensor:
        """Return `new` with `context` zeros before it on `axis`."""
        shape = list(new.shape)
        shape[axis] = context
        return torch.cat((new.new_zeros(shape), new), dim=axis) if context else new

    def advance(self, key: CarryKey, rows: int, count: int, device: torch.device) -> Tensor:
        """Every row begins: zeros [rows]."""
        return torch.zeros(rows, dtype=torch.int64, device=device)
