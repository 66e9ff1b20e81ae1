"""Fairness among clients: the order of their turns, and the share of a resource that one client may hold.

Self-clocked fair queueing with equal weights. A turn costs one round; further costs are charged when they are known. A
new flow joins in the round after the current one, so that a series of new flows cannot starve a waiting one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

CLIENT_SHARE = 3 / 4  # share that a client may hold of the amount not used by other clients


def client_share(limit: int, total: int, own: int) -> float:
    """Return how much of `limit` a client may hold, given that it holds `own` and all clients together `total`."""
    return CLIENT_SHARE * (limit - total + own)


class Turns(Generic[Flow]):
    """The round of each waiting flow's next turn."""

    def __init__(self) -> None:
        self.round = 0.0  # round of the last turn that was not early
        self._next: dict[Flow, float] = {}
        self._left: dict[Flow, float] = {}  # next rounds of flows without waiting work, if later than the next round

    def __len__(self) -> int:
        return len(self._next)

    def __contains__(self, flow: Flow) -> bool:
        return flow in self._next

    def join(self, flow: Flow) -> None:
        """Add a flow that has waiting work."""
        self._next[flow] = max(self.round + 1, self._left.pop(flow, 0.0))

    def leave(self, flow: Flow) -> None:
        """Remove a flow without waiting work; its early turns stay charged."""
        turn = self._next.pop(flow)
        if turn > self.round + 1:
            self._left[flow] = turn

    def add_cost(self, flow: Flow, rounds: float) -> None:
        """Charge a flow for the cost of its turns beyond one round each."""
        if flow in self._next:
            self._next[flow] += rounds
        else:
            self._left[flow] = max(self.round + 1, self._left.get(flow, 0.0)) + rounds

    def next(self, flow: Flow) -> float:
        return self._next[flow]

    @property
    def first(self) -> float:
        """The round of the earliest pending turn, but not before the current round."""
        return max(self.round, min(self._next.values(), default=0.0))

    def charge(self, flow: Flow, *, early: bool = False) -> None:
        """Charge a flow for a turn; an early one does not advance the round."""
        turn = self._next[flow]
        if not early and turn > self.round:
            self.round = turn
            if self._left:
                self._left = {each: left for each, left in self._left.items() if left > turn + 1}
        # Rounds that a flow skipped while it was paused are lost.
        self._next[flow] = max(turn, self.round) + 1
