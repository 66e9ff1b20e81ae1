"""Voices of recordings that were encoded before: in memory by bytes, on disk for the next start.

The key is what was heard (a hash of the recording's bytes) and what encoded it (a fingerprint); what is said
in the recording is no part of it. A recording that several requests bring at once is encoded once. On disk each entry
is a file of its own, mapped into memory when it is asked for, so that thousands of them cost nothing at the start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import save_file

from s1_mini.byte_cache import ByteCache, CacheStats
from s1_mini.exceptions import RequestTimeoutError
from s1_mini.files import files
from s1_mini.voices.format import Tensors, VoiceFormat, for_file, num_bytes

logger = logging.getLogger(__name__)


class ReferenceCache:
    """The tensors of voices by recording; safe to use from several threads."""

    def __init__(
        self, form: VoiceFormat, *, max_bytes: int, max_entries: int | None = None, directory: Path | None = None
    ) -> None:
        self._form = form
        self._memory: ByteCache[Tensors] = ByteCache(max_bytes, max_entries)
        self._directory = None if directory is None else directory / form.encoder
        self._under_way: dict[str, Future[Tensors]] = {}
        self._lock = threading.Lock()

    def key(self, recording: bytes | np.ndarray) -> str:
        """Name a recording: the bytes of a file, or a wave at the encoder's rate."""
        digest = hashlib.blake2b(digest_size=16)
        if isinstance(recording, np.ndarray):
            digest.update(f"wave {recording.dtype} ".encode())
            digest.update(recording.tobytes())
        else:
            digest.update(recording)
        return digest.hexdigest()

    def find(self, key: str) -> Tensors | None:
        """Give the tensors of a recording if they are known, in memory or on disk; None if they must be made."""
        with self._lock:
            known = self._memory.get(key) if key in self._memory else None
        if known is None and (known := self._read(key)) is not None:
            self._memory.put(key, known, num_bytes(known))
        return known

    def get(self, key: str, encode: Callable[[], Tensors]) -> Tensors:
        """Give the tensors of a recording, by `encode` if they are not known; what it raises, all who wait get."""
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
            made = self._read(key)
            if made is None:
                made = encode()
                self._write(key, made)
            self._memory.put(key, made, num_bytes(made))
            under_way.set_result(made)
        except BaseException as error:
            under_way.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[key]
        return made

    def pin(self, key: str) -> None:
        """Keep the tensors of a recording in memory."""
        self._memory.pin(key)

    def shrink(self) -> int:
        """Let go of all in memory that are not pinned; give the bytes freed."""
        return self._memory.shrink()

    @property
    def stats(self) -> CacheStats:
        """Figures of the part in memory."""
        return self._memory.stats

    def _read(self, key: str) -> Tensors | None:
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            return self._form.read(path)[0]
        except (SafetensorError, OSError, ValueError) as error:
            logger.warning("%s is no voice of this checkpoint and is made anew: %s", path, error)
            return None

    def _write(self, key: str, tensors: Tensors) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                save_file(for_file(tensors), unfinished)
                files.replace(unfinished, path)
            finally:
                unfinished.unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:  # a full disk costs time, not requests
            logger.warning("%s cannot be written: %s", path, error)

    def _path(self, key: str) -> Path | None:
        return None if self._directory is None else self._directory / f"{key}.safetensors"
