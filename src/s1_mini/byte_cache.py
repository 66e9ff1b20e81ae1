"""A least-recently-used cache bounded by bytes, with pinned entries. Operations take amortised constant time.

Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheStats:
    """The current size of a cache, and its hits, misses and evictions since it was created."""

    entries: int
    num_bytes: int
    max_bytes: int
    pinned: int
    hits: int
    misses: int
    evictions: int


class ByteCache(Generic[Value]):
    """Values by key: at most `max_entries` values, and at most `max_bytes` bytes in total."""

    def __init__(self, max_bytes: int, max_entries: int | None = None) -> None:
        self.max_bytes, self.max_entries = max_bytes, max_entries
        # Values with their sizes in bytes.
        self._entries: OrderedDict[str, tuple[Value, int]] = OrderedDict()  # unpinned, the most recently used last
        self._pinned_entries: dict[str, tuple[Value, int]] = {}
        self._pinned: set[str] = set()  # keys, present or not
        self._num_bytes = self._pinned_bytes = 0
        self._hits = self._misses = self._evictions = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        """Return the value of `key`, or None, and mark it as the most recently used."""
        with self._lock:
            entry = self._pinned_entries.get(key)
            if entry is None and (entry := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            return entry[0]

    def put(self, key: str, value: Value, num_bytes: int) -> bool:
        """Store `value`, evicting others; return False if it and the pinned entries do not fit together."""
        with self._lock:
            self._remove(key)
            if self._pinned_bytes + num_bytes > self.max_bytes or len(self._pinned_entries) == self.max_entries:
                return False
            self._insert(key, (value, num_bytes))
            self._evict(self.max_bytes)
            return True

    def pin(self, key: str) -> None:
        """Exempt `key` from eviction, now or as soon as it is stored."""
        with self._lock:
            self._pinned.add(key)
            self._move(key)

    def unpin(self, key: str) -> None:
        """Allow `key` to be evicted again."""
        with self._lock:
            self._pinned.discard(key)
            self._move(key)

    def is_pinned(self, key: str) -> bool:
        """Return whether `key` is exempt from eviction."""
        return key in self._pinned

    def remove(self, key: str) -> None:
        """Remove `key`, pinned or not; does nothing if it is absent."""
        with self._lock:
            self._pinned.discard(key)
            self._remove(key)

    def shrink(self) -> int:
        """Evict all unpinned entries; return the bytes freed."""
        with self._lock:
            before = self._num_bytes
            self._evict(0)
            return before - self._num_bytes

    def __contains__(self, key: str) -> bool:
        return key in self._entries or key in self._pinned_entries

    @property
    def stats(self) -> CacheStats:
        """Current figures."""
        with self._lock:
            return CacheStats(
                entries=len(self._entries) + len(self._pinned_entries),
                num_bytes=self._num_bytes,
                max_bytes=self.max_bytes,
                pinned=len(self._pinned_entries),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _evict(self, max_bytes: int) -> None:
        """Evict the least recently used entries. An entry just stored stays, because `put` has checked that it fits."""
        while self._entries and self._is_over(max_bytes):
            self._num_bytes -= self._entries.popitem(last=False)[1][1]
            self._evictions += 1

    def _is_over(self, max_bytes: int) -> bool:
        num_entries = len(self._entries) + len(self._pinned_entries)
        return self._num_bytes > max_bytes or (self.max_entries is not None and num_entries > self.max_entries)

    def _insert(self, key: str, entry: tuple[Value, int]) -> None:
        self._num_bytes += entry[1]
        if key in self._pinned:
            self._pinned_entries[key] = entry
            self._pinned_bytes += entry[1]
        else:
            self._entries[key] = entry

    def _remove(self, key: str) -> tuple[Value, int] | None:
        entry = self._entries.pop(key, None)
        if entry is None and (entry := self._pinned_entries.pop(key, None)) is not None:
            self._pinned_bytes -= entry[1]
        if entry is not None:
            self._num_bytes -= entry[1]
        return entry

    def _move(self, key: str) -> None:
        """Move an entry between the pinned and the evictable entries if its status has changed."""
        if (entry := self._remove(key)) is not None:
            self._insert(key, entry)
