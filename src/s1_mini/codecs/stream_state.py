"""State of a causal network between chunks, so that audio in chunks of any size equals the audio of one call.

A causal layer depends on a fixed number of past inputs. The state prepends them to each layer's new input; at the start
of a stream, the past inputs are zeros, the padding of a causal layer. Whole and streamed audio use the same code.
Tensors are allocated at first use and then changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

StateKey = tuple[object, str]  # a layer, and the name of one of its tensors


class StreamState:
    """Past inputs of every layer for B rows."""

    def __init__(self) -> None:
        self._past: dict[StateKey, Tensor] = {}

    def extend(
        self, key: StateKey, new: Tensor, context: int, axis: int = -1, *, beginning: Tensor | None = None
    ) -> Tensor:
        """Return the last `context` inputs followed by `new` on `axis`, and store the last inputs of this result.

        `beginning` is the past of rows that begin a new stream, in a state that knows these rows; others ignore it.
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
        """Add `count` to the number of inputs of each row and return the previous numbers: int64 [rows]."""
        seen = self._get(key, [rows], torch.int64, device)
        before = self._read(seen).clone()
        self._write(seen, before + count)
        return before

    def reset(self, row: int) -> None:
        """Begin a new stream in one row."""
        for past in list(self._past.values()):
            past[row] = 0

    def save(self, row: int) -> list[Tensor]:
        """Return a copy of the state of one row."""
        return [past[row].clone() for past in list(self._past.values())]

    def load(self, row: int, saved: Sequence[Tensor]) -> None:
        """Replace the state of a row by one that `save` returned for any row."""
        for past, one in zip(self._past.values(), saved, strict=True):
            past[row] = one

    def _get(self, key: StateKey, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        past = self._past.get(key)
        if past is None:
            # `setdefault`, because another thread may decode other rows for the first time at this moment.
            past = self._past.setdefault(key, torch.zeros(shape, dtype=dtype, device=device))
        return past

    def _read(self, past: Tensor, beginning: Tensor | None = None) -> Tensor:
        return past

    def _write(self, past: Tensor, end: Tensor) -> None:
        past.copy_(end)


class SelectedStreams(StreamState):
    """A selection of the rows of `whole`, the state of many streams. The other rows do not change.

    `slot_ids` [n] are row numbers, on the host or on the device, or a slice. If they are on the device, they may change
    between replays of a CUDA graph. Nothing is stored before `commit`, so that a call that fails changes nothing.
    """

    def __init__(
        self, whole: StreamState, num_rows: int, slot_ids: Sequence[int] | Tensor | slice, device: torch.device
    ) -> None:
        self._past, self._num_rows = whole._past, num_rows
        self._ends: list[tuple[Tensor, Tensor]] = []  # stored tensors, and the new contents that `commit` writes
        if isinstance(slot_ids, Tensor | slice):
            self._slot_ids: Tensor | slice = slot_ids
        else:  # a slice for one row, because it reads a view; a tensor of row numbers would read a copy
            one = len(slot_ids) == 1
            self._slot_ids = slice(slot_ids[0], slot_ids[0] + 1) if one else torch.tensor(slot_ids, device=device)

    def commit(self) -> None:
        """Store the last inputs of all layers."""
        for past, end in self._ends:
            past[self._slot_ids] = end
        self._ends.clear()

    def _get(self, key: StateKey, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        return super()._get(key, [self._num_rows, *shape[1:]], dtype, device)

    def _read(self, past: Tensor, beginning: Tensor | None = None) -> Tensor:
        return past[self._slot_ids]

    def _write(self, past: Tensor, end: Tensor) -> None:
        self._ends.append((past, end.clone()))  # a copy, so that the joined tensor can be freed


class NoState(StreamState):
    """The state for training and single calls, each of which is a whole stream: the past is zero, nothing is stored."""

    def _get(self, key: StateKey, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def _write(self, past: Tensor, end: Tensor) -> None:
        pass
