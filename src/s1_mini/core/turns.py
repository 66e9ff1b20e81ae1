"""Fairness among clients: the order of their turns, and the share of a resource that one client may hold.

The method is self-clocked fair queueing with equal weights. A flow is a client, or a group of a client's requests. A
turn costs a flow one round; further costs are charged when they are known. A new flow joins in the round after the
current round, so that a series of new flows cannot starve a waiting flow.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

CLIENT_SHARE = 3 / 4  # a client may hold this share of what other clients leave free


def client_share(limit: int, total: int, own: int) -> float:
    """Return how much of `limit` a client may hold, given that it holds `own` and all clients together `total`."""
    return CLIENT_SHARE * (limit - total + own)


class Turns(Generic[Flow]):
    """For each flow that waits, the round of its next turn."""

    def __init__(self) -> None:
        self.round = 0.0  # the current round: that of the last turn that was not early
        self._next: dict[Flow, float] = {}
        self._left: dict[Flow, float] = {}  # flows without waiting work that have been charged beyond the next round

    def __len__(self) -> int:
        return len(self._next)

    def __contains__(self, flow: Flow) -> bool:
        return flow in self._next

    def join(self, flow: Flow) -> None:
        """Add a flow that has waiting work."""
        self._next[flow] = max(self.round + 1, self._left.pop(flow, 0.0))

    def leave(self, flow: Flow) -> None:
        """Remove a flow without waiting work. It stays charged for early turns and additional costs."""
        turn = self._next.pop(flow)
        if turn > self.round + 1:
            self._left[flow] = turn

    def add_cost(self, flow: Flow, rounds: float) -> None:
        """Charge a flow for costs of its turns beyond the one round that each turn costs."""
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
        """Charge a flow for a turn. An early turn does not advance the current round."""
        turn = self._next[flow]
        if not early and turn > self.round:
            self.round = turn
            if self._left:
                self._left = {each: left for each, left in self._left.items() if left > turn + 1}
        # Rounds that a flow skipped while it was paused are lost.
        self._next[flow] = max(turn, self.round) + 1
