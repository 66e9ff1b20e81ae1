"""State that a causal network keeps between two chunks, so that any chunking gives the samples of one call.

A causal layer depends on a fixed number of past inputs. Each layer asks the state to put those before its new
input; at the start they are zeros, which is what a causal layer pads with anyway. So there is one code path for
whole and streamed work. Tensors are made at first use and changed in place afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

StateKey = tuple[object, str]  # a layer, and a name for each of the things that it keeps


class StreamState:
    """Past inputs of every layer for B rows."""

    snake: Callable[[Tensor, Tensor], Tensor] | None = None  # activation instead of torch's, compiled for a CPU

    def __init__(self) -> None:
        self._past: dict[StateKey, Tensor] = {}

    def extend(
        self, key: StateKey, new: Tensor, context: int, axis: int = -1, *, beginning: Tensor | None = None
    ) -> Tensor:
        """Return `new` with the last `context` inputs before it on `axis`, and keep its own end.

        `beginning` is the past of rows that begin a new stream: zeros, if it is None.
        """
        if context == 0:
            return new
        shape = list(new.shape)
        shape[axis] = context
        past = self._get(key, shape, new.dtype, new.device)
        joined = torch.cat((self._read(past, beginning), new), dim=axis)
        self._write(past, joined.narrow(axis, joined.shape[axis] - context, context))
        return joined

    def advance(self, key: StateKey, rows: int, count: int, device: torch.device) -> Tensor:
        """Count `count` more inputs and return how many each row had before: int64 [rows]."""
        seen = self._get(key, [rows], torch.int64, device)
        before = self._read(seen).clone()
        self._write(seen, before + count)
        return before

    def reset(self, row: int) -> None:
        """Begin a new stream in one row."""
        for past in self._past.values():
            past[row] = 0

    @property
    def num_bytes(self) -> int:
        return sum(past.nbytes for past in self._past.values())

    def _get(self, key: StateKey, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        past = self._past.get(key)
        if past is None:
            past = self._past[key] = torch.zeros(shape, dtype=dtype, device=device)
        return past

    def _read(self, past: Tensor, beginning: Tensor | None = None) -> Tensor:
        return past

    def _write(self, past: Tensor, end: Tensor) -> None:
        past.copy_(end)


class SelectedStreams(StreamState):
    """The rows `chosen` of the state of many streams; the others stay as they are.

    `chosen` [n] are row numbers, on the host or on the device, or a slice. `fresh` [n] is true for rows that begin a
    new stream; on the device like `chosen`, both may change between replays of a CUDA graph. Nothing is kept before
    `commit`, so a call that fails on the way has changed nothing.
    """

    def __init__(
        self,
        whole: StreamState,
        num_rows: int,
        chosen: Sequence[int] | Tensor | slice,
        device: torch.device,
        fresh: Tensor | None = None,
    ) -> None:
        self._past = whole._past
        self._num_rows, self._fresh = num_rows, fresh
        self._ends: list[tuple[Tensor, Tensor]] = []  # what is to be kept, and where
        if isinstance(chosen, Tensor | slice):
            self._chosen: Tensor | slice = chosen
        else:  # a slice of one row is a view; a tensor of rows would copy it
            one = len(chosen) == 1
            self._chosen = slice(chosen[0], chosen[0] + 1) if one else torch.tensor(chosen, device=device)

    def commit(self) -> None:
        """Keep the ends of all inputs."""
        for past, end in self._ends:
            past[self._chosen] = end
        self._ends.clear()

    def _get(self, key: StateKey, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        return super()._get(key, [self._num_rows, *shape[1:]], dtype, device)

    def _read(self, past: Tensor, beginning: Tensor | None = None) -> Tensor:
        chosen = past[self._chosen]
        if self._fresh is None:
            return chosen
        # Not multiplied: a row may have been left with numbers that are not finite.
        fresh = self._fresh.view(-1, *[1] * (past.dim() - 1))
        return chosen.masked_fill(fresh, 0) if beginning is None else torch.where(fresh, beginning, chosen)

    def _write(self, past: Tensor, end: Tensor) -> None:
        self._ends.append((past, end.clone()))  # a copy, so that the joined tensor can be freed


class NoState(StreamState):
    """Every call is a whole stream: the past is zeros and nothing is kept. For training, and for single calls."""

    def _get(self, key: StateKey, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def _write(self, past: Tensor, end: Tensor) -> None:
        pass
