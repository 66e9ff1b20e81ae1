"""The one door into the engine: bounded, orderly, and grouping what shares a voice.

A request that finds the queue full is refused at once and told when to come again; one that is let in is never lost.
Pieces leave in the order in which they are due. Pure bookkeeping with the time as an argument.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from s1_mini.exceptions import QueueFullError
from s1_mini.runtime.job import Job, Piece

HISTORY = 1000  # admissions that the statistics tell of


@dataclass(frozen=True)
class QueueStats:
    """How the queue has done of late."""

    waiting: int  # pieces
    accepted: int  # requests, since the start
    refused: int
    mean_wait_s: float  # of pieces admitted lately
    max_wait_s: float
    mean_batch_size: float  # pieces admitted at once


class BatchQueue:
    """Waiting pieces, at most `max_size` of them from requests that have not begun.

    `batch_timeout_ms` is the longest time that a piece is held back to be admitted together with others; a piece that
    would fill the free slots is not held back. With `grouping`, pieces that share a voice leave together.
    """

    def __init__(self, max_size: int, *, batch_timeout_ms: float = 0.0, grouping: bool = True) -> None:
        self.max_size = max_size
        self.batch_timeout_s = batch_timeout_ms / 1000
        self.grouping = grouping
        self._heap: list[tuple[float, int, int, Piece]] = []  # due, job number, index
        self._lock = threading.Lock()
        self._accepted = self._refused = 0
        self._waits: deque[float] = deque(maxlen=HISTORY)
        self._batches: deque[int] = deque(maxlen=HISTORY)

    def __len__(self) -> int:
        return len(self._heap)

    def submit(self, job: Job, retry_after_s: float) -> None:
        """Let all pieces of a new job wait. Raises `QueueFullError` if there is no room for it."""
        with self._lock:
            if self._heap and len(self._heap) + len(job.pieces) > self.max_size:
                self._refused += 1
                raise QueueFullError(len(self._heap), self.max_size, retry_after_s)
            self._accepted += 1
            self._push(job.pieces)

    def extend(self, pieces: Sequence[Piece]) -> None:
        """Let further pieces of a job wait that was let in before."""
        with self._lock:
            self._push(pieces)

    def take(self, free: int, now: float) -> list[Piece]:
        """Give the pieces to begin now, at most `free`, in the order of their turn."""
        with self._lock:
            if not free or not self._heap or self._holds_back(free, now):
                return []
            taken = [heapq.heappop(self._heap)[-1]]
            if self.grouping:
                taken += self._take_like(taken[0], free - 1)
            while len(taken) < free and self._heap:
                taken.append(heapq.heappop(self._heap)[-1])
            self._waits.extend(max(0.0, now - piece.due) for piece in taken)
            self._batches.append(len(taken))
            return taken

    def wakes(self, now: float) -> float | None:
        """Seconds until what is held back may leave; None if nothing waits."""
        with self._lock:
            if not self._heap:
                return None
            return max(0.0, self._oldest() + self.batch_timeout_s - now)

    def remove(self, job: Job) -> None:
        """Take a job's waiting pieces out."""
        with self._lock:
            self._keep(lambda piece: piece.job is not job)

    def clear(self) -> list[Job]:
        """Take everything out; give the jobs that had pieces waiting."""
        with self._lock:
            jobs = list({id(entry[-1].job): entry[-1].job for entry in self._heap}.values())
            self._heap.clear()
            return jobs

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

    def _push(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            heapq.heappush(self._heap, (piece.due, piece.job.number, piece.index, piece))

    def _holds_back(self, free: int, now: float) -> bool:
        return bool(self.batch_timeout_s) and len(self._heap) < free and now < self._oldest() + self.batch_timeout_s

    def _oldest(self) -> float:
        return min(entry[-1].job.arrived for entry in self._heap)

    def _take_like(self, first: Piece, count: int) -> list[Piece]:
        """Take up to `count` first pieces of jobs that share the voice of `first`; it is read once for all."""
        key = first.prompt.prefix_key
        like = sorted(
            entry for entry in self._heap if key and entry[-1].prompt.prefix_key == key and entry[-1].index == 0
        )[:count]
        chosen = {id(entry[-1]) for entry in like}
        self._keep(lambda piece: id(piece) not in chosen)
        return [entry[-1] for entry in like]

    def _keep(self, wanted: Callable[[Piece], bool]) -> None:
        self._heap = [entry for entry in self._heap if wanted(entry[-1])]
        heapq.heapify(self._heap)
