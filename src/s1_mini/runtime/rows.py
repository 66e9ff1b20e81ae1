"""Batch sizes and context lengths of captured steps, and the flags of the slots that take part in one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from s1_mini.layers.staging import stage

SPAN = 64  # positions; a multiple of what attention adds up at once
_LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def ladder(slots: int) -> list[int]:
    """Return the batch sizes of captured steps, ascending; a call uses the smallest one that fits."""
    return [*(rows for rows in _LADDER if rows < slots), slots]


def fit(sizes: Sequence[int], count: int) -> int:
    """Return the first of ascending sizes that is at least `count`."""
    return next(size for size in sizes if size >= count)


def whole_spans(positions: int) -> int:
    """Round positions up to a multiple of `SPAN`."""
    return -(-positions // SPAN) * SPAN


class SteppingSlots:
    """The slots that take part in a step: `flags`, bool [slots] on their device, which steps read."""

    def __init__(self, flags: Tensor) -> None:
        self._flags = flags
        self._now: frozenset[int] = frozenset()

    def choose(self, slots: Collection[int]) -> None:
        chosen = frozenset(slots)
        if chosen != self._now:
            flags = torch.zeros(len(self._flags), dtype=torch.bool)
            flags[list(chosen)] = True
            self._flags.copy_(stage(flags, self._flags.device))
            self._now = chosen
