"""Fairness among clients: who takes the next turn, and how much one client may hold.

Self-clocked fair queueing with equal weights: a turn costs one round, and what it turns out to cost beyond that is
charged later. A new flow joins the round after the current one, so flows that keep coming cannot starve one that waits.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

CLIENT_SHARE = 3 / 4  # of what other clients leave of a resource


def client_share(limit: int, total: int, own: int) -> float:
    """Return how much of `limit` a client may hold, given that it holds `own` and all clients together `total`."""
    return CLIENT_SHARE * (limit - total + own)


class Turns(Generic[Flow]):
    """The round of each waiting flow's next turn."""

    def __init__(self) -> None:
        self.round = 0.0  # of the last turn in order
        self._next: dict[Flow, float] = {}
        self._left: dict[Flow, float] = {}  # of flows that left with turns that are charged beyond the next round

    def __len__(self) -> int:
        return len(self._next)

    def __contains__(self, flow: Flow) -> bool:
        return flow in self._next

    def join(self, flow: Flow) -> None:
        """Add a flow that has something waiting."""
        self._next[flow] = max(self.round + 1, self._left.pop(flow, 0.0))

    def leave(self, flow: Flow) -> None:
        """Remove a flow that has nothing waiting; turns that it took early stay charged."""
        turn = self._next.pop(flow)
        if turn > self.round + 1:
            self._left[flow] = turn

    def add_cost(self, flow: Flow, rounds: float) -> None:
        """Charge a flow for what its turns have cost beyond one round each."""
        if flow in self._next:
            self._next[flow] += rounds
        else:
            self._left[flow] = max(self.round + 1, self._left.get(flow, 0.0)) + rounds

    def next(self, flow: Flow) -> float:
        return self._next[flow]

    @property
    def first(self) -> float:
        """The round of the earliest turn that a flow waits for; flows that skipped rounds do not hold it back."""
        return max(self.round, min(self._next.values(), default=0.0))

    def charge(self, flow: Flow, *, early: bool = False) -> None:
        """Charge a flow for a turn; an early one does not advance the round."""
        turn = self._next[flow]
        if not early and turn > self.round:
            self.round = turn
            if self._left:
                self._left = {each: left for each, left in self._left.items() if left > turn + 1}
        # A flow that skipped rounds while it was paused has no claim to them.
        self._next[flow] = max(turn, self.round) + 1
