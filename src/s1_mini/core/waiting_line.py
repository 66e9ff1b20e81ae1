"""The queue of utterances that wait for a slot of the first stage: bounded, fair to clients, grouped by voice.

A request that finds the queue full is refused at once with a time to retry after; an accepted request is never lost.
Clients take turns. Within a client, groups of requests take turns. Within a group, utterances leave in the order in
which they are due. A request counts once, however many of its utterances wait; paused requests stay in the queue and do
not count. Pure bookkeeping with the time as an argument.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from s1_mini.core.request import Request, Utterance
from s1_mini.core.turns import Turns
from s1_mini.exceptions import QueueFullError

HISTORY = 1000  # admissions that the statistics tell of


Group = str | int  # an unnamed group is the number of its only request
Entry = tuple[int, float, int, Request]  # the group's next turn, due, request number


@dataclass(frozen=True)
class QueueStats:
    """How the queue has done of late."""

    waiting: int  # requests
    accepted: int  # requests, since the start
    refused: int
    mean_wait_s: float  # of utterances admitted lately
    max_wait_s: float
    mean_batch_size: float  # utterances admitted at once


class WaitingLine:
    """Waiting utterances, of at most `max_size` requests: beyond that, new ones are refused.

    `batch_timeout_ms` is the longest time that an utterance is held back to be admitted together with others; a batch
    that fills the free slots leaves at once. With `grouping`, first utterances that share a voice leave together, as
    far as their clients and groups are at most one turn ahead of those that they overtake.
    """

    def __init__(self, max_size: int, *, batch_timeout_ms: float = 0.0, grouping: bool = True) -> None:
        self.max_size = max_size
        self.batch_timeout_s = batch_timeout_ms / 1000
        self.grouping = grouping
        self._waiting: dict[Request, deque[Utterance]] = {}
        self._clients: Turns[str] = Turns()
        self._groups: dict[str, Turns[Group]] = {}  # by client
        self._members: Counter[tuple[str, Group]] = Counter()  # waiting requests of a group
        self._lock = threading.Lock()
        self._accepted = self._refused = 0
        self._waits: deque[float] = deque(maxlen=HISTORY)
        self._batches: deque[int] = deque(maxlen=HISTORY)

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, not even of paused requests."""
        return not self._waiting

    def submit(self, request: Request, retry_after_s: float) -> None:
        """Add the utterances of a new request. Raises `QueueFullError` if they do not fit."""
        with self._lock:
            waiting = self._count()
            if waiting >= self.max_size:
                self._refused += 1
                raise QueueFullError(waiting, self.max_size, retry_after_s)
            self._accepted += 1
            self._push(request, request.utterances)

    def extend(self, request: Request, utterances: Sequence[Utterance]) -> None:
        """Add further utterances of an accepted request."""
        with self._lock:
            self._push(request, utterances)

    def num_waiting(self, request: Request) -> int:
        """Return how many utterances of a request wait."""
        return len(self._waiting.get(request, ()))

    def take(self, free: int, now: float) -> list[Utterance]:
        """Return the utterances to begin now, at most `free`, in order."""
        if free <= 0 or not self._waiting:
            return []
        with self._lock:
            requests = self._eligible()
            if not requests or self._delay(requests, free, now) > 0:
                return []
            ready = self._by_client(requests)
            taken: list[Utterance] = []
            while len(taken) < free and (request := self._next(ready)) is not None:
                taken.append(self._pop(request))
                if len(taken) == 1 and self.grouping:
                    taken += self._take_like(taken[0], ready, free - 1)
            self._waits.extend(max(0.0, now - utterance.due) for utterance in taken)
            self._batches.append(len(taken))
            return taken

    def wakes(self, now: float, free: int) -> float | None:
        """Return the seconds until `take` returns something for so many free slots; None if it will not."""
        if free <= 0 or not self._waiting:
            return None
        with self._lock:
            requests = self._eligible()
            return self._delay(requests, free, now) if requests else None

    def remove(self, request: Request) -> None:
        """Remove a request's utterances."""
        with self._lock:
            if self._waiting.pop(request, None) is not None:
                self._leave(request)

    def forget(self) -> None:
        """Reset the statistics."""
        with self._lock:
            self._accepted = self._refused = 0
            self._waits.clear()
            self._batches.clear()

    @property
    def stats(self) -> QueueStats:
        """Current statistics."""
        with self._lock:
            return QueueStats(
                waiting=self._count(),
                accepted=self._accepted,
                refused=self._refused,
                mean_wait_s=sum(self._waits) / len(self._waits) if self._waits else 0.0,
                max_wait_s=max(self._waits, default=0.0),
                mean_batch_size=sum(self._batches) / len(self._batches) if self._batches else 0.0,
            )

    # ---- with the lock held ---------------------------------------------------------------------------------------

    def _count(self) -> int:
        return len(self._eligible())

    def _eligible(self) -> list[Request]:
        return [request for request in self._waiting if not request.is_paused]

    def _delay(self, requests: Sequence[Request], free: int, now: float) -> float:
        """Return how long to hold utterances back: for nothing if they fill the free slots."""
        if not self.batch_timeout_s:
            return 0.0
        if sum(len(self._waiting[request]) + len(request.later) for request in requests) >= free:
            return 0.0
        return max(0.0, min(request.arrived for request in requests) + self.batch_timeout_s - now)

    def _push(self, request: Request, utterances: Sequence[Utterance]) -> None:
        if not utterances:
            return
        if request in self._waiting:
            self._waiting[request].extend(utterances)
            return
        self._waiting[request] = deque(utterances)
        client, group = _flow(request)
        if client not in self._clients:
            self._clients.join(client)
            self._groups[client] = Turns()
        if not self._members[client, group]:
            self._groups[client].join(group)
        self._members[client, group] += 1

    def _leave(self, request: Request) -> None:
        client, group = _flow(request)
        self._members[client, group] -= 1
        if not self._members[client, group]:
            del self._members[client, group]
            self._groups[client].leave(group)
            if not len(self._groups[client]):
                del self._groups[client]
                self._clients.leave(client)

    def _pop(self, request: Request, *, early: bool = False) -> Utterance:
        """Remove a request's next utterance and charge its client and group for it."""
        client, group = _flow(request)
        utterances = self._waiting[request]
        utterance = utterances.popleft()
        self._clients.charge(client, early=early)
        self._groups[client].charge(group, early=early)
        if not utterances:
            del self._waiting[request]
            self._leave(request)
        return utterance

    def _entry(self, request: Request) -> Entry:
        client, group = _flow(request)
        return self._groups[client].next(group), self._waiting[request][0].due, request.number, request

    def _by_client(self, requests: Sequence[Request]) -> dict[str, list[Entry]]:
        ready: dict[str, list[Entry]] = {}
        for request in requests:
            ready.setdefault(request.flow[0], []).append(self._entry(request))
        for entries in ready.values():
            heapq.heapify(entries)
        return ready

    def _next(self, ready: dict[str, list[Entry]]) -> Request | None:
        """Return the request whose turn is next; entries of `ready` may be out of date, and are updated here."""
        for client in [each for each in ready if each not in self._clients]:
            del ready[client]
        while ready:
            client = min(ready, key=lambda each: (self._clients.next(each), ready[each][0][1:3]))
            entries = ready[client]
            request = entries[0][-1]
            if request in self._waiting:
                current = self._entry(request)
                if current[:3] == entries[0][:3]:
                    return request
                heapq.heapreplace(entries, current)
            else:
                heapq.heappop(entries)
                if not entries:
                    del ready[client]
        return None

    def _take_like(self, first: Utterance, ready: dict[str, list[Entry]], count: int) -> list[Utterance]:
        """Take up to `count` first utterances of requests that share the voice of `first`, which is prefilled once.

        They are charged as if their turn had come, and may overtake others by one turn at most.
        """
        key = first.prompt.prefix_key
        if not key or count <= 0:
            return []
        entries = [entry for each in ready.values() for entry in each if entry[-1] in self._waiting]
        like = [entry for entry in entries if self._is_first(entry[-1], key)]
        like.sort(key=lambda entry: (self._clients.next(entry[-1].flow[0]), *entry[:3]))
        first_client = min((self._clients.next(client) for client in ready if client in self._clients), default=0)
        first_groups = {
            client: min((self._entry(each)[0] for *_, each in entries if each in self._waiting), default=0)
            for client, entries in ready.items()
        }
        taken: list[Utterance] = []
        for *_, request in like:
            client, group = _flow(request)
            is_ahead = self._clients.next(client) > first_client + 1
            if not is_ahead and self._groups[client].next(group) <= first_groups[client] + 1:
                taken.append(self._pop(request, early=True))
            if len(taken) == count:
                break
        return taken

    def _is_first(self, request: Request, key: str) -> bool:
        utterance = self._waiting[request][0]
        return utterance.index == 0 and utterance.prompt.prefix_key == key


def _flow(request: Request) -> tuple[str, Group]:
    client, group = request.flow
    return client, group or request.number
