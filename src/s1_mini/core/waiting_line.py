"""The queue of utterances that wait for a slot of the first stage: bounded, fair to clients, grouped by voice.

If the queue is full, a request is refused with a retry time; an accepted request is never lost. Clients take turns and
are charged by steps, so that long utterances cost more. Within a client, groups of requests take turns in the same way;
within a group, utterances are ordered by due time. The size of the queue is the number of its requests, whatever the
number of their utterances. Paused requests stay in the queue, but are not counted. Nothing here reads a clock: the time
is an argument.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from s1_mini.core.request import Request, Utterance
from s1_mini.core.turns import SlotShares, Turns
from s1_mini.exceptions import QueueFullError

STEPS_A_TURN = 10  # steps of the first stage that one turn covers
HISTORY = 1000  # number of admissions that the statistics cover
RATE_HISTORY = 50  # batches over which the admission rate is measured
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0

Group = str | int  # the group's name; a request without a group is a group of its own, named by its number
Entry = tuple[float, float, int, int, Request]  # the group's next turn, due time, request number, tie-breaker, request
ClientTurn = tuple[float, float, int, str]  # the client's next turn, its first request's due time and number, its name


@dataclass(frozen=True)
class QueueStats:
    """Queue statistics."""

    waiting: int  # requests, now
    accepted: int  # requests, since the start
    refused: int  # requests, since the start
    mean_wait_s: float  # over the last `HISTORY` admitted utterances
    max_wait_s: float  # over the same utterances
    mean_batch_size: float  # mean number of utterances admitted together, over the last `HISTORY` admissions


class _AdmissionRate:
    """How fast utterances leave the queue, measured only while requests wait."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, int]] = deque(maxlen=RATE_HISTORY)  # time and size of admitted batches

    def add(self, now: float, size: int) -> None:
        self._batches.append((now, size))

    def forget(self) -> None:
        self._batches.clear()

    def retry_after_s(self, num_waiting: int) -> float:
        """Return the seconds until half of `num_waiting` utterances are admitted at the recent rate, within limits."""
        if len(self._batches) < 2:
            return MIN_RETRY_S
        elapsed = self._batches[-1][0] - self._batches[0][0]
        admitted = sum(size for _, size in self._batches) - self._batches[0][1]
        return min(max(MIN_RETRY_S, num_waiting / 2 * elapsed / admitted), MAX_RETRY_S)


class WaitingLine:
    """The waiting utterances of at most `max_size` requests. Further requests are refused.

    Utterances are held back for at most `batch_timeout_ms` to be admitted together with others; a batch that fills the
    free slots is admitted at once. With `grouping`, first utterances with the same voice are admitted together, unless
    a client or group would get more than one turn ahead of those that it overtakes.
    """

    def __init__(self, max_size: int, *, batch_timeout_ms: float = 0.0, grouping: bool = True) -> None:
        self.max_size = max_size
        self.batch_timeout_s = batch_timeout_ms / 1000
        self.grouping = grouping
        self._waiting: dict[Request, deque[Utterance]] = {}
        self._order = _FairOrder(self._waiting)
        self._lock = threading.RLock()  # `submit` reads `retry_after_s`
        self._accepted = self._refused = 0
        self._waits: deque[float] = deque(maxlen=HISTORY)
        self._batches: deque[int] = deque(maxlen=HISTORY)
        self._rate = _AdmissionRate()
        self.shares: SlotShares | None = None  # set by a scheduler, which calls `charge` and `end`

    def __len__(self) -> int:
        with self._lock:
            return len(self._eligible())

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def submit(self, request: Request) -> None:
        """Add the utterances of a new request. Raises `QueueFullError` if the queue is full."""
        with self._lock:
            if len(self._waiting) >= self.max_size and (waiting := len(self._eligible())) >= self.max_size:
                self._refused += 1
                raise QueueFullError(waiting, self.max_size, self.retry_after_s)
            self._accepted += 1
            self._push(request, request.utterances)

    def extend(self, request: Request, utterances: Sequence[Utterance]) -> None:
        with self._lock:
            self._push(request, utterances)

    def num_waiting(self, request: Request) -> int:
        return len(self._waiting.get(request, ()))

    def take(self, free: int, now: float, *, is_behind: bool = False) -> list[Utterance]:
        """Remove and return the utterances to begin now, at most `free`, in the order of their turns.

        `is_behind` is that of `SlotShares.may_begin`.
        """
        if free <= 0 or not self._waiting:
            return []
        with self._lock:
            if self.batch_timeout_s and self._delay(self._eligible(), free, now) > 0:
                return []
            taken: list[Utterance] = []
            groups = self.grouping

            def may_begin(client: str) -> bool:
                return self._may_begin(client, free - len(taken), now, is_behind=is_behind)

            with self._order.turns(may_begin) as following:
                while len(taken) < free and (request := following()) is not None:
                    if taken and groups and not _is_first_with(taken[0].prompt.prefix_key, self._waiting[request]):
                        groups = False  # take the requests with the same voice as `taken[0]` before this request
                        self._take_like(taken, free, now, may_begin)
                        continue
                    taken.append(self._pop(request, now))
            if taken:
                self._waits.extend(max(0.0, now - utterance.due) for utterance in taken)
                self._batches.append(len(taken))
                self._rate.add(now, len(taken))
                if not self._waiting:
                    self._rate.forget()
            return taken

    def wakes(self, now: float, free: int, *, is_behind: bool = False) -> float | None:
        """Return the seconds until `take` will return an utterance for `free` slots; None if it will not."""
        if free <= 0 or not self._waiting:
            return None
        with self._lock:
            clients = {request.flow[0] for request in self._waiting}
            clients = {each for each in clients if self._may_begin(each, free, now, is_behind=is_behind)}
            if not clients:
                return None
            requests = [request for request in self._eligible() if request.flow[0] in clients]
            return self._delay(requests, free, now) if requests else None

    def charge(self, request: Request, steps: int) -> None:
        """Charge a request's client and group for the steps of an utterance that has left its slot."""
        with self._lock:
            if self.shares is not None:
                self.shares.leave(request.flow[0])
            if steps > STEPS_A_TURN:
                self._order.add_cost(request, steps / STEPS_A_TURN - 1)

    def end(self, request: Request) -> None:
        """Count an utterance of a request that was taken and has ended."""
        with self._lock:
            if self.shares is not None:
                self.shares.end(request.flow[0])

    def remove(self, request: Request) -> None:
        with self._lock:
            if self._waiting.pop(request, None) is not None:
                self._order.leave(request)
                if not self._waiting:
                    self._rate.forget()

    def forget(self) -> None:
        with self._lock:
            self._accepted = self._refused = 0
            self._waits.clear()
            self._batches.clear()
            self._rate.forget()

    @property
    def retry_after_s(self) -> float:
        """Seconds after which a request that the full queue refuses should be sent again."""
        with self._lock:
            return self._rate.retry_after_s(sum(map(len, self._waiting.values())))

    @property
    def stats(self) -> QueueStats:
        with self._lock:
            return QueueStats(
                waiting=len(self._eligible()),
                accepted=self._accepted,
                refused=self._refused,
                mean_wait_s=sum(self._waits) / len(self._waits) if self._waits else 0.0,
                max_wait_s=max(self._waits, default=0.0),
                mean_batch_size=sum(self._batches) / len(self._batches) if self._batches else 0.0,
            )

    # ---- with the lock held ---------------------------------------------------------------------------------------

    def _may_begin(self, client: str, num_free: int, now: float, *, is_behind: bool) -> bool:
        if self.shares is None:
            return not is_behind
        return self.shares.may_begin(client, num_free, now, is_behind=is_behind)

    def _eligible(self) -> list[Request]:
        return [request for request in self._waiting if not request.update_pause()]

    def _delay(self, requests: Sequence[Request], free: int, now: float) -> float:
        """Return for how many more seconds to hold utterances back; 0 if they fill the free slots."""
        if not self.batch_timeout_s:
            return 0.0
        if sum(len(self._waiting[request]) + len(request.later) for request in requests) >= free:
            return 0.0
        return max(0.0, min(request.arrived for request in requests) + self.batch_timeout_s - now)

    def _push(self, request: Request, utterances: Sequence[Utterance]) -> None:
        if request in self._waiting:
            self._waiting[request].extend(utterances)
        elif utterances:
            self._waiting[request] = deque(utterances)
            self._order.join(request)

    def _pop(self, request: Request, now: float, *, early: bool = False) -> Utterance:
        utterances = self._waiting[request]
        utterance = utterances.popleft()
        self._order.charge(request, early=early)
        if not utterances:
            del self._waiting[request]
            self._order.leave(request)
        if self.shares is not None:
            self.shares.begin(request.flow[0], now)
        return utterance

    def _take_like(self, taken: list[Utterance], free: int, now: float, may_begin: Callable[[str], bool]) -> None:
        """Take first utterances that begin with the same prefix as `taken[0]`, so that it is prefilled only once.

        Each is charged for a turn as usual, and overtakes other requests by at most one turn.
        """
        key = taken[0].prompt.prefix_key
        like = [
            each for each, waiting in self._waiting.items() if _is_first_with(key, waiting) and not each.update_pause()
        ]
        may_be_next = self._order.next_round()
        for request in self._order.sorted(like):
            if len(taken) == free:
                break
            if may_be_next(request) and may_begin(request.flow[0]):
                taken.append(self._pop(request, now, early=True))


class _FairOrder:
    """The order of requests: by the turns of their clients, then of their groups, then by due time.

    `waiting` is the dictionary of `WaitingLine`, with the waiting utterances of each request.
    """

    def __init__(self, waiting: Mapping[Request, deque[Utterance]]) -> None:
        self._waiting = waiting
        self._clients: Turns[str] = Turns()
        self._groups: dict[str, Turns[Group]] = {}  # by client
        self._heaps: dict[str, list[Entry]] = {}  # by client
        self._ties = itertools.count()
        self._members: Counter[tuple[str, Group]] = Counter()  # waiting requests per group

    def join(self, request: Request) -> None:
        client, group = _flow(request)
        if client not in self._clients:
            self._clients.join(client)
            self._groups[client] = Turns()
        if not self._members[client, group]:
            self._groups[client].join(group)
        self._members[client, group] += 1
        heapq.heappush(self._heaps.setdefault(client, []), self._entry(request))

    def leave(self, request: Request) -> None:
        client, group = _flow(request)
        self._members[client, group] -= 1
        if not self._members[client, group]:
            del self._members[client, group]
            self._groups[client].leave(group)
            if not len(self._groups[client]):
                del self._groups[client]
                self._heaps.pop(client, None)
                self._clients.leave(client)

    def charge(self, request: Request, *, early: bool) -> None:
        client, group = _flow(request)
        self._clients.charge(client, early=early)
        self._groups[client].charge(group, early=early)

    def add_cost(self, request: Request, rounds: float) -> None:
        client, group = _flow(request)
        self._clients.add_cost(client, rounds)
        if client in self._groups:
            self._groups[client].add_cost(group, rounds)

    @contextmanager
    def turns(self, may_begin: Callable[[str], bool]) -> Iterator[Callable[[], Request | None]]:
        """Yield a function that returns the request whose turn is next.

        It skips paused requests, and clients that may not begin an utterance, now or later in this block.
        """
        paused: list[tuple[str, Entry]] = []
        order = [self._client_turn(client) for client in self._heaps]
        heapq.heapify(order)
        yield lambda: self._next(order, paused, may_begin)
        for client, entry in paused:
            heapq.heappush(self._heaps.setdefault(client, []), entry)

    def sorted(self, requests: Sequence[Request]) -> list[Request]:
        return sorted(requests, key=lambda each: (self._clients.next(each.flow[0]), *self._entry(each)[:-1]))

    def next_round(self) -> Callable[[Request], bool]:
        """Return a function that says whether a request would get at most one turn ahead of all others."""
        first = self._clients.first
        first_groups = {client: groups.first for client, groups in self._groups.items()}

        def is_in_it(request: Request) -> bool:
            client, group = _flow(request)
            return (
                self._clients.next(client) <= first + 1 and self._groups[client].next(group) <= first_groups[client] + 1
            )

        return is_in_it

    def _entry(self, request: Request) -> Entry:
        client, group = _flow(request)
        return (
            self._groups[client].next(group),
            self._waiting[request][0].due,
            request.number,
            next(self._ties),
            request,
        )

    def _next(
        self, order: list[ClientTurn], paused: list[tuple[str, Entry]], may_begin: Callable[[str], bool]
    ) -> Request | None:
        """Return the request whose turn is next, and move the entries of paused requests to `paused`.

        `order` is a heap of clients by turn. Entries of `order` and of the clients' heaps may be outdated; this method
        updates the entries at the top.
        """
        while order:
            client = order[0][-1]
            heap = self._heaps.get(client)
            if not may_begin(client):
                heapq.heappop(order)
                continue
            if not heap:  # the client has nothing waiting except paused requests
                self._heaps.pop(client, None)
                heapq.heappop(order)
                continue
            request = heap[0][-1]
            if request not in self._waiting:
                heapq.heappop(heap)
            elif (current := self._entry(request))[:3] != heap[0][:3]:
                heapq.heapreplace(heap, current)
            elif request.update_pause():
                paused.append((client, heapq.heappop(heap)))
            elif (turn := self._client_turn(client)) == order[0]:
                return request
            else:
                heapq.heapreplace(order, turn)
        return None

    def _client_turn(self, client: str) -> ClientTurn:
        heap = self._heaps[client]
        due, number = heap[0][1:3] if heap else (0.0, 0)
        return self._clients.next(client), due, number, client


def _is_first_with(key: str, waiting: Sequence[Utterance]) -> bool:
    """Return whether the next of a request's utterances is its first and begins with this prefix."""
    return bool(key) and waiting[0].index == 0 and waiting[0].prompt.prefix_key == key


def _flow(request: Request) -> tuple[str, Group]:
    client, group = request.flow
    return client, group or request.number
