"""Utterances that wait for a slot of the first stage: bounded, in the order in which they are due, grouped by voice.

A request that finds the queue full is refused at once and told when to come again; one that is let in is never lost.
Utterances leave in the order in which they are due. Pure bookkeeping with the time as an argument.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from s1_mini.core.request import Request, Utterance
from s1_mini.exceptions import QueueFullError

HISTORY = 1000  # admissions that the statistics tell of


@dataclass(frozen=True)
class QueueStats:
    """How the queue has done of late."""

    waiting: int  # utterances
    accepted: int  # requests, since the start
    refused: int
    mean_wait_s: float  # of utterances admitted lately
    max_wait_s: float
    mean_batch_size: float  # utterances admitted at once


class WaitingLine:
    """Waiting utterances, at most `max_size` of them from requests that have not begun.

    `batch_timeout_ms` is the longest time that one is held back to be admitted together with others; one that would
    fill the free slots is not held back. With `grouping`, utterances that share a voice leave together.
    """

    def __init__(self, max_size: int, *, batch_timeout_ms: float = 0.0, grouping: bool = True) -> None:
        self.max_size = max_size
        self.batch_timeout_s = batch_timeout_ms / 1000
        self.grouping = grouping
        self._heap: list[tuple[float, int, int, Utterance]] = []  # due, request number, index
        self._lock = threading.Lock()
        self._accepted = self._refused = 0
        self._waits: deque[float] = deque(maxlen=HISTORY)
        self._batches: deque[int] = deque(maxlen=HISTORY)

    def __len__(self) -> int:
        return len(self._heap)

    def submit(self, request: Request, retry_after_s: float) -> None:
        """Let all utterances of a new request wait. Raises `QueueFullError` if there is no room for it."""
        with self._lock:
            if self._heap and len(self._heap) + len(request.utterances) > self.max_size:
                self._refused += 1
                raise QueueFullError(len(self._heap), self.max_size, retry_after_s)
            self._accepted += 1
            self._push(request.utterances)

    def extend(self, utterances: Sequence[Utterance]) -> None:
        """Let further utterances of a request wait that was let in before."""
        with self._lock:
            self._push(utterances)

    def take(self, free: int, now: float) -> list[Utterance]:
        """Give the utterances to begin now, at most `free`, in the order of their turn."""
        with self._lock:
            if not free or not self._heap or self._holds_back(free, now):
                return []
            taken = [heapq.heappop(self._heap)[-1]]
            if self.grouping:
                taken += self._take_like(taken[0], free - 1)
            while len(taken) < free and self._heap:
                taken.append(heapq.heappop(self._heap)[-1])
            self._waits.extend(max(0.0, now - utterance.due) for utterance in taken)
            self._batches.append(len(taken))
            return taken

    def wakes(self, now: float) -> float | None:
        """Seconds until what is held back may leave; None if nothing waits."""
        with self._lock:
            if not self._heap:
                return None
            return max(0.0, self._oldest() + self.batch_timeout_s - now)

    def remove(self, request: Request) -> None:
        """Take a request's waiting utterances out."""
        with self._lock:
            self._keep(lambda utterance: utterance.request is not request)

    def clear(self) -> list[Request]:
        """Take everything out; give the requests that had utterances waiting."""
        with self._lock:
            requests = list({id(entry[-1].request): entry[-1].request for entry in self._heap}.values())
            self._heap.clear()
            return requests

    def forget(self) -> None:
        """Begin the figures anew."""
        with self._lock:
            self._accepted = self._refused = 0
            self._waits.clear()
            self._batches.clear()

    @property
    def stats(self) -> QueueStats:
        """Figures of this moment."""
        with self._lock:
            return QueueStats(
                waiting=len(self._heap),
                accepted=self._accepted,
                refused=self._refused,
                mean_wait_s=sum(self._waits) / len(self._waits) if self._waits else 0.0,
                max_wait_s=max(self._waits, default=0.0),
                mean_batch_size=sum(self._batches) / len(self._batches) if self._batches else 0.0,
            )

    def _push(self, utterances: Sequence[Utterance]) -> None:
        for utterance in utterances:
            heapq.heappush(self._heap, (utterance.due, utterance.request.number, utterance.index, utterance))

    def _holds_back(self, free: int, now: float) -> bool:
        return bool(self.batch_timeout_s) and len(self._heap) < free and now < self._oldest() + self.batch_timeout_s

    def _oldest(self) -> float:
        return min(entry[-1].request.arrived for entry in self._heap)

    def _take_like(self, first: Utterance, count: int) -> list[Utterance]:
        """Take up to `count` first utterances of requests that share the voice of `first`; it is read once for all."""
        key = first.prompt.prefix_key
        like = sorted(
            entry for entry in self._heap if key and entry[-1].prompt.prefix_key == key and entry[-1].index == 0
        )[:count]
        chosen = {id(entry[-1]) for entry in like}
        self._keep(lambda utterance: id(utterance) not in chosen)
        return [entry[-1] for entry in like]

    def _keep(self, wanted: Callable[[Utterance], bool]) -> None:
        self._heap = [entry for entry in self._heap if wanted(entry[-1])]
        heapq.heapify(self._heap)
