"""Cache of encoded recordings, as voices without text: in memory up to a byte limit, and in a bounded store on disk.

The key is a hash of the recording, without its transcript, and of the version of its conditioning. A recording that
several requests use at once is encoded once. Processes share the store. In it, an entry is a safetensors file,
`ENCODER/KEY.safetensors`, which is memory-mapped for reading, so a large store does not slow down the start. Entries
are written to a temporary file and renamed; the least recently used ones are deleted when the store is full. A file's
modification time is the time of its last use. No lock is needed, because all processes see the same times and delete
the same entries.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from s1_mini.audio.conditioning import VERSION
from s1_mini.byte_cache import ByteCache, CacheStats
from s1_mini.exceptions import RequestTimeoutError
from s1_mini.files import files
from s1_mini.types import Voice
from s1_mini.voices.format import Tensors, VoiceFormat, for_file, num_bytes

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
CONDITIONING = VERSION.to_bytes(16, "little")  # the salt of the hash
BLOCK_BYTES = 4096  # a file occupies whole blocks
FULL, TRIMMED = 7 / 8, 3 / 4  # shares of the limit: above the first, entries are deleted down to the second
SCAN_EVERY = 1 / 64  # scan after writing this share of the limit, so that eight processes stay within the limit
_OWN_FILES = re.compile(
    r"[0-9a-f]{32}\.safetensors|\.[0-9a-f]{32}-\w+\.tmp"
)  # other files are neither counted nor deleted
JOIN_S = 10.0  # timeout for the loading thread to end; reading one entry takes milliseconds


class ReferenceCache:
    """Voices by recording, without text; safe to use from several threads."""

    def __init__(self, *, max_bytes: int, max_entries: int | None = None, store: ReferenceStore | None = None) -> None:
        self._memory: ByteCache[Voice] = ByteCache(max_bytes, max_entries)
        self._store = store
        self._warmer: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._under_way: dict[str, Future[Voice]] = {}
        self._lock = threading.Lock()

    def key(self, recording: bytes | np.ndarray) -> str:
        """Hash a recording: the bytes of a file, or a wave at the encoder's rate."""
        if isinstance(recording, np.ndarray):
            person = f"wave {recording.dtype}".encode()
            return hashlib.blake2b(recording.tobytes(), digest_size=16, person=person, salt=CONDITIONING).hexdigest()
        return hashlib.blake2b(recording, digest_size=16, person=b"file", salt=CONDITIONING).hexdigest()

    def find(self, key: str) -> Voice | None:
        """Return the voice of a recording from memory or disk, or None if it must be encoded."""
        with self._lock:
            known = self._memory.get(key) if key in self._memory else None
        if self._store is not None:
            if known is not None:
                self._store.mark_used(key)
            elif (known := self._store.read(key)) is not None:
                self._memory.put(key, known, num_bytes(known.tensors))
        return known

    def get(self, key: str, encode: Callable[[], Voice]) -> Voice:
        """Return the voice of a recording, from `encode` if it is not cached.

        Callers that wait for another caller's `encode` get its errors, but retry if it timed out or was cancelled.
        """
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
            except (RequestTimeoutError, CancelledError):  # the error concerns the other caller
                return self.get(key, encode)
        try:
            made = None if self._store is None else self._store.read(key)
            if made is None:
                made = encode()
                if self._store is not None:
                    self._store.write(key, made)
            self._memory.put(key, made, num_bytes(made.tensors))
        except BaseException as error:
            self._end(key)  # first, so that callers who retry do not find this future again
            under_way.set_exception(error)
            raise
        self._end(key)
        under_way.set_result(made)
        return made

    def _end(self, key: str) -> None:
        with self._lock:
            del self._under_way[key]

    def start(self) -> None:
        """Trim the store and load its most recently used entries, in the background."""
        if self._store is not None:
            self._warmer = threading.Thread(target=self.warm, name="s1_mini reference cache", daemon=True)
            self._warmer.start()

    def close(self) -> None:
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
        loaded: list[tuple[str, Voice]] = []
        for key in self._store.newest():
            if self._is_closed.is_set() or len(loaded) == free_entries:
                break
            voice = None if key in self._memory else self._store.read(key, is_use=False)
            if voice is not None:
                free_bytes -= num_bytes(voice.tensors)
                if free_bytes < 0:
                    break
                loaded.append((key, voice))
        for key, voice in reversed(loaded):  # the most recently used entry is evicted last
            self._memory.put(key, voice, num_bytes(voice.tensors))

    @property
    def stats(self) -> CacheStats:
        return self._memory.stats


class _Entry(NamedTuple):
    used_ns: int
    path: Path
    num_bytes: int


class ReferenceStore:
    """The voices of recordings by key, on disk, without text; safe to use from several threads and processes."""

    def __init__(self, folder: Path, form: VoiceFormat, max_bytes: int) -> None:
        self._root, self._form, self._max_bytes = folder, form, max_bytes
        self._unscanned_bytes = 0  # written since the last scan
        self._warned: set[int | None] = set()
        self._lock = threading.Lock()

    def read(self, key: str, *, is_use: bool = True) -> Voice | None:
        """Return the voice of `key`, or None if it is missing, damaged, or of another key or encoder."""
        path = self._path(key)
        try:
            tensors, metadata = self._form.read(path)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError) as error:
            logger.warning("the cached reference %s cannot be read; encoding the recording again: %s", path, error)
            return None
        voice = Voice(tensors, "", metadata.get("warning", ""))
        if metadata != self._metadata(key, voice):
            logger.warning("the contents of %s do not match its name; encoding the recording again", path)
            return None
        if is_use:
            self.mark_used(key)
        return voice

    def write(self, key: str, voice: Voice) -> None:
        """Store a voice, then delete old entries if the store is full. Each kind of failure is logged once."""
        content = save(for_file(voice.tensors), metadata=self._metadata(key, voice))
        size = _on_disk(len(content))
        if size > self._max_bytes * TRIMMED:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.publish(path, content)
        except OSError as error:  # such as a full disk: requests continue without the store
            if error.errno not in self._warned:
                self._warned.add(error.errno)
                logger.warning("cannot write the reference cache: %s: %s", path, error.strerror)
            return
        with self._lock:
            self._unscanned_bytes += size
            is_due = self._unscanned_bytes >= self._max_bytes * SCAN_EVERY
        if is_due:
            self.trim()

    def mark_used(self, key: str) -> None:
        """Mark the entry of `key`, if it exists, as the most recently used."""
        with suppress(OSError):
            os.utime(self._path(key))

    def trim(self) -> None:
        """Delete the least recently used entries, of all encoders, if the store is full."""
        with self._lock:
            self._unscanned_bytes = 0
            entries = sorted(self._scan())
            total = sum(entry.num_bytes for entry in entries)
            if total <= self._max_bytes * FULL:
                return
            for entry in entries:
                if total <= self._max_bytes * TRIMMED:
                    return
                try:
                    files.remove(entry.path)
                except FileNotFoundError:  # another process deleted it
                    pass
                except OSError as error:
                    logger.warning("cannot delete %s: %s", entry.path, error.strerror)
                    continue
                total -= entry.num_bytes

    def newest(self) -> list[str]:
        """Return the keys of this encoder, the most recently used first."""
        entries = sorted(self._scan_folder(self._root / self._form.encoder), reverse=True)
        return [entry.path.stem for entry in entries if entry.path.suffix == SUFFIX]

    def _scan(self) -> Iterator[_Entry]:
        try:
            folders = [entry.path for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # not created yet, or not readable, which `write` reports
            return
        for folder in folders:
            yield from self._scan_folder(Path(folder))

    def _scan_folder(self, folder: Path) -> Iterator[_Entry]:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted by another process
                    if _OWN_FILES.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield _Entry(status.st_mtime_ns, Path(entry.path), _on_disk(status.st_size))

    def _metadata(self, key: str, voice: Voice) -> dict[str, str]:
        checksum = _checksum(voice.tensors)
        return {"key": key, "codec": self._form.encoder, "checksum": checksum, "warning": voice.warning}

    def _path(self, key: str) -> Path:
        return self._root / self._form.encoder / f"{key}{SUFFIX}"


def _on_disk(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _checksum(tensors: Tensors) -> str:
    """Hash names, types, shapes and values; integers as int64, their type in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        same = tensor if tensor.is_floating_point() else tensor.long()
        digest.update(f"{name} {same.dtype} {list(same.shape)} ".encode())
        digest.update(same.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
