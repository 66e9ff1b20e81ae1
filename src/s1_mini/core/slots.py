"""Which rows of a stage's state are taken: numbers only, the tensors are the stage's."""

from __future__ import annotations

import heapq


class Slots:
    """Rows 0 … count - 1; the lowest free one is given first, so that few rows are in use at low load."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    def allocate(self) -> int:
        """Give a free row; there must be one."""
        slot = heapq.heappop(self._free)
        self._used.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Let a row be taken again; it must have been taken."""
        self._used.remove(slot)
        heapq.heappush(self._free, slot)
