"""A least-recently-used cache bounded by bytes. Operations take amortised constant time.

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
    hits: int
    misses: int
    evictions: int


class ByteCache(Generic[Value]):
    """Values by key: at most `max_entries` values, and at most `max_bytes` bytes in total."""

    def __init__(self, max_bytes: int, max_entries: int | None = None) -> None:
        self.max_bytes, self.max_entries = max_bytes, max_entries
        # Values with their sizes in bytes, the most recently used last.
        self._entries: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._num_bytes = self._hits = self._misses = self._evictions = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        """Return the value of `key`, or None, and mark it as the most recently used."""
        with self._lock:
            if (entry := self._entries.get(key)) is None:
                self._misses += 1
                return None
            self._entries.move_to_end(key)
            self._hits += 1
            return entry[0]

    def put(self, key: str, value: Value, num_bytes: int) -> bool:
        """Store `value`, evicting others; return False if it does not fit."""
        with self._lock:
            self._remove(key)
            if num_bytes > self.max_bytes or self.max_entries == 0:
                return False
            self._entries[key] = value, num_bytes
            self._num_bytes += num_bytes
            self._evict(self.max_bytes)
            return True

    def remove(self, key: str) -> None:
        """Remove `key`; does nothing if it is absent."""
        with self._lock:
            self._remove(key)

    def shrink(self) -> int:
        """Evict all entries; return the bytes freed."""
        with self._lock:
            before = self._num_bytes
            self._evict(-1)
            return before - self._num_bytes

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def stats(self) -> CacheStats:
        """Current figures."""
        with self._lock:
            return CacheStats(
                entries=len(self._entries),
                num_bytes=self._num_bytes,
                max_bytes=self.max_bytes,
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _evict(self, max_bytes: int) -> None:
        """Evict the least recently used entries. An entry just stored stays, because `put` has checked that it fits."""
        while self._entries and (
            self._num_bytes > max_bytes or (self.max_entries is not None and len(self._entries) > self.max_entries)
        ):
            self._num_bytes -= self._entries.popitem(last=False)[1][1]
            self._evictions += 1

    def _remove(self, key: str) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._num_bytes -= entry[1]
