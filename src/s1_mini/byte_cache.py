"""A cache bounded by bytes: what was used longest ago goes first, what is pinned stays.

Knows nothing of what it holds but its size. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheStats:
    """How a cache has done since it was made."""

    entries: int
    num_bytes: int
    max_bytes: int
    pinned: int
    hits: int
    misses: int
    evictions: int


@dataclass
class _Entry(Generic[Value]):
    value: Value
    num_bytes: int


class ByteCache(Generic[Value]):
    """Values by key, together at most `max_bytes` bytes, and at most `max_entries` of them."""

    def __init__(self, max_bytes: int, max_entries: int | None = None) -> None:
        self.max_bytes, self.max_entries = max_bytes, max_entries
        self._entries: OrderedDict[str, _Entry[Value]] = OrderedDict()  # the one used last stands last
        self._pinned: set[str] = set()
        self._num_bytes = self._hits = self._misses = self._evictions = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        """Give the value of `key`, if there is one, and count it as used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: str, value: Value, num_bytes: int) -> bool:
        """Keep `value`, at the cost of others; tell whether there is room for it beside what is pinned."""
        with self._lock:
            self._remove(key)
            pinned = [self._entries[k].num_bytes for k in self._pinned if k in self._entries]
            if sum(pinned) + num_bytes > self.max_bytes or len(pinned) == self.max_entries:
                return False
            self._entries[key] = _Entry(value, num_bytes)
            self._num_bytes += num_bytes
            self._shrink(self.max_bytes, spare=key)
            return True

    def pin(self, key: str) -> None:
        """Never let `key` go, once it is there."""
        with self._lock:
            self._pinned.add(key)

    def unpin(self, key: str) -> None:
        """Let `key` go as any other."""
        with self._lock:
            self._pinned.discard(key)

    def is_pinned(self, key: str) -> bool:
        """Whether `key` is not let go."""
        return key in self._pinned

    def remove(self, key: str) -> None:
        """Forget `key`, pinned or not; does nothing if it is not there."""
        with self._lock:
            self._pinned.discard(key)
            self._remove(key)

    def shrink(self) -> int:
        """Let go of all but what is pinned; give the bytes freed."""
        with self._lock:
            before = self._num_bytes
            self._shrink(0, spare=None)
            return before - self._num_bytes

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def stats(self) -> CacheStats:
        """Figures of this moment."""
        with self._lock:
            return CacheStats(
                entries=len(self._entries),
                num_bytes=self._num_bytes,
                max_bytes=self.max_bytes,
                pinned=sum(key in self._entries for key in self._pinned),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _shrink(self, max_bytes: int, *, spare: str | None) -> None:
        for key in list(self._entries):
            if self._num_bytes <= max_bytes and (self.max_entries is None or len(self._entries) <= self.max_entries):
                return
            if key not in self._pinned and key != spare:
                self._remove(key)
                self._evictions += 1

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._num_bytes -= entry.num_bytes
