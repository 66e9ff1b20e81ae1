"""Which rows of the model's state are taken: numbers only, the tensors are the model's."""

from __future__ import annotations

import heapq


class Slots:
    """Rows 0 … count - 1; the lowest free one is given first, so that few rows are in use at low load."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    def take(self) -> int:
        """Give a free row; there must be one."""
        slot = heapq.heappop(self._free)
        self._taken.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Let a row be taken again; it must have been taken."""
        self._taken.remove(slot)
        heapq.heappush(self._free, slot)
