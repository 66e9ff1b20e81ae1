"""Fairness among clients: the order of their turns, and the share of a resource or of the slots that one may hold.

The method is self-clocked fair queueing with equal weights. A flow is a client, or a group of a client's requests. A
turn costs a flow one round; further costs are charged when they are known. A new flow joins in the round after the
current round, so that a series of new flows cannot starve a waiting flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

RECENT_S = 10.0  # for this long after a client's last utterance began, other clients leave it a slot
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


class SlotShares:
    """Which clients may begin an utterance in the free slots of the first stage. All times are in seconds.

    A client that holds its equal share of the slots leaves the last free slot to the other recent clients, because
    their next utterance would otherwise wait until a long one ends. A client that is alone takes all slots.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: Counter[str] = Counter()  # slots by client
        self._open: Counter[str] = Counter()  # begun utterances by client, until their last audio
        self._num_with_several = 0  # clients with more than one such utterance
        self._begun: dict[str, float] = {}  # clients by when they last began an utterance, at most `RECENT_S` ago
        self._num_older = 0  # clients that hold slots and are not in `_begun`

    def begin(self, client: str, now: float) -> None:
        self._num_older -= client in self._held and client not in self._begun
        self._held[client] += 1
        self._open[client] += 1
        self._num_with_several += self._open[client] == 2
        self._begun.pop(client, None)
        self._begun[client] = now
        self._expire(now)

    def leave(self, client: str) -> None:
        """Count an utterance that has left its slot."""
        _decrease(self._held, client)
        self._num_older -= client not in self._held and client not in self._begun

    def end(self, client: str) -> None:
        """Count an utterance that has all its audio, or that was cancelled."""
        self._num_with_several -= self._open[client] == 2
        _decrease(self._open, client)

    def may_begin(self, client: str, num_free: int, now: float, *, is_behind: bool) -> bool:
        """Whether a client may take one of `num_free` slots.

        If the next stage is behind (`is_behind`) because of a client's many utterances, a client without any may.
        """
        if is_behind:
            return self._num_with_several > 0 and client not in self._open
        if num_free > 1 or client not in self._held:
            return True
        num_others = self._num_recent(now) - 1  # it holds a slot, so it is recent
        return not num_others or self._held[client] < self._count / (1 + num_others)

    def _num_recent(self, now: float) -> int:
        self._expire(now)
        return len(self._begun) + self._num_older

    def _expire(self, now: float) -> None:
        while self._begun:
            client, begun = next(iter(self._begun.items()))
            if now - begun < RECENT_S:
                break
            del self._begun[client]
            self._num_older += client in self._held


def _decrease(counts: Counter[str], client: str) -> None:
    counts[client] -= 1
    if not counts[client]:
        del counts[client]
