"""Storage in host memory for the items of one utterance that one stage passes to the next."""

from __future__ import annotations

import numpy as np

from s1_mini.core.stage import Spec

MIN_CAPACITY = 64  # items; keeps the number of allocations small


class Items:
    """A growing array of items [n, *shape]. One thread may extend it while another thread reads it."""

    def __init__(self, spec: Spec) -> None:
        self._items = np.zeros((0, *spec.shape), np.dtype(spec.dtype))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, items: np.ndarray) -> None:
        end = self._count + len(items)
        if end > len(self._items):
            grown = np.zeros((max(MIN_CAPACITY, 2 * self._count, end), *self._items.shape[1:]), self._items.dtype)
            grown[: self._count] = self._items[: self._count]
            self._items = grown
        self._items[self._count : end] = items
        self._count = end

    def cut(self, start: int, stop: int) -> np.ndarray:
        """Return the items from `start` up to `stop`, exclusive, without copying."""
        return self._items[max(0, start) : min(stop, self._count)]
