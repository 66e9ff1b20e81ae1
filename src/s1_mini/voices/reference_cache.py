"""Encoded recordings: in memory up to a number of bytes, and on disk in a store that processes share.

The key is a hash of the recording; what is said in the recording is no part of it. The store keeps what each encoder
made apart. A recording that several requests bring at once is encoded once.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import numpy as np

from s1_mini.byte_cache import ByteCache, CacheStats
from s1_mini.exceptions import RequestTimeoutError
from s1_mini.voices.format import Tensors, num_bytes
from s1_mini.voices.reference_store import ReferenceStore

JOIN_S = 10.0  # reading one entry takes milliseconds


class ReferenceCache:
    """The tensors of voices by recording; safe to use from several threads."""

    def __init__(self, *, max_bytes: int, max_entries: int | None = None, store: ReferenceStore | None = None) -> None:
        self._memory: ByteCache[Tensors] = ByteCache(max_bytes, max_entries)
        self._store = store
        self._warmer: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._under_way: dict[str, Future[Tensors]] = {}
        self._lock = threading.Lock()

    def key(self, recording: bytes | np.ndarray) -> str:
        """Hash a recording: the bytes of a file, or a wave at the encoder's rate."""
        if isinstance(recording, np.ndarray):
            person = f"wave {recording.dtype}".encode()
            return hashlib.blake2b(recording.tobytes(), digest_size=16, person=person).hexdigest()
        return hashlib.blake2b(recording, digest_size=16, person=b"file").hexdigest()

    def find(self, key: str) -> Tensors | None:
        """Return the tensors of a recording from memory or disk, or None if it must be encoded."""
        with self._lock:
            known = self._memory.get(key) if key in self._memory else None
        if self._store is not None:
            if known is not None:
                self._store.mark_used(key)
            elif (known := self._store.read(key)) is not None:
                self._memory.put(key, known, num_bytes(known))
        return known

    def get(self, key: str, encode: Callable[[], Tensors]) -> Tensors:
        """Return the tensors of a recording, by `encode` if they are not cached; all waiting callers get its error."""
        with self._lock:
            known = self._memory.get(key)
            if known is not None:
                return known
            under_way = self._under_way.get(key)
            mine = under_way is None
            if under_way is None:
                under_way = self._under_way[key] = Future()
        if not mine:
            try:
                return under_way.result()
            except (RequestTimeoutError, CancelledError):  # of the other's, not ours
                return self.get(key, encode)
        try:
            made = None if self._store is None else self._store.read(key)
            if made is None:
                made = encode()
                if self._store is not None:
                    self._store.write(key, made)
            self._memory.put(key, made, num_bytes(made))
            under_way.set_result(made)
        except BaseException as error:
            under_way.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[key]
        return made

    def start(self) -> None:
        """Trim the store and load its most recently used entries, in the background."""
        if self._store is not None:
            self._warmer = threading.Thread(target=self.warm, name="s1_mini reference cache", daemon=True)
            self._warmer.start()

    def close(self) -> None:
        """Stop loading entries in the background."""
        self._is_closed.set()
        if self._warmer is not None:
            self._warmer.join(JOIN_S)

    def warm(self) -> None:
        """Trim the store and load its most recently used entries into memory, as far as there is room."""
        if self._store is None:
            return
        self._store.trim()
        stats = self._memory.stats
        free_bytes = stats.max_bytes - stats.num_bytes
        free_entries = None if self._memory.max_entries is None else self._memory.max_entries - stats.entries
        loaded: list[tuple[str, Tensors]] = []
        for key in self._store.newest():
            if self._is_closed.is_set() or len(loaded) == free_entries:
                break
            tensors = None if key in self._memory else self._store.read(key, is_use=False)
            if tensors is not None:
                free_bytes -= num_bytes(tensors)
                if free_bytes < 0:
                    break
                loaded.append((key, tensors))
        for key, tensors in reversed(loaded):  # so that the most recently used is the last to be evicted
            self._memory.put(key, tensors, num_bytes(tensors))

    def pin(self, key: str) -> None:
        """Keep the tensors of a recording in memory."""
        self._memory.pin(key)

    def shrink(self) -> int:
        """Evict all unpinned entries from memory; return the bytes freed."""
        return self._memory.shrink()

    @property
    def stats(self) -> CacheStats:
        """Figures of the part in memory."""
        return self._memory.stats
