"""Encoded recordings on disk: a bounded store that several processes share.

An entry is a safetensors file, `ENCODER/KEY.safetensors`, and is memory-mapped to read it, so a large store costs
nothing at the start. Entries are written whole and renamed; the least recently used ones are deleted. A file's
modification time is its last use. No lock is needed: all processes see the same times and delete the same entries.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save

from s1_mini.files import files
from s1_mini.voices.format import Tensors, VoiceFormat, for_file

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
BLOCK_BYTES = 4096  # a file occupies whole blocks
FULL, TRIMMED = 7 / 8, 3 / 4  # of the limit: above the first, entries are deleted down to the second
SCAN_EVERY = 1 / 64  # of the limit, written by this process; so eight processes together stay within the limit
_OWN_FILES = re.compile(r"[0-9a-f]{32}\.safetensors|\.[0-9a-f]{32}-\w+\.tmp")  # no others are counted or deleted


class _Entry(NamedTuple):
    used_ns: int
    path: Path
    num_bytes: int


class ReferenceStore:
    """The tensors of recordings by key, on disk; safe to use from several threads and processes."""

    def __init__(self, folder: Path, form: VoiceFormat, max_bytes: int) -> None:
        self._root, self._form, self._max_bytes = folder, form, max_bytes
        self._unscanned_bytes = 0  # written since the last scan
        self._warned: set[int | None] = set()
        self._lock = threading.Lock()

    def read(self, key: str, *, is_use: bool = True) -> Tensors | None:
        """Return the tensors of `key`, or None if they are missing, damaged, or those of another key or encoder."""
        path = self._path(key)
        try:
            tensors, metadata = self._form.read(path)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError) as error:
            logger.warning("the cached reference %s cannot be read and is encoded again: %s", path, error)
            return None
        if metadata != self._metadata(key, tensors):
            logger.warning("%s does not hold what its name says; the recording is encoded again", path)
            return None
        if is_use:
            self.mark_used(key)
        return tensors

    def write(self, key: str, tensors: Tensors) -> None:
        """Store tensors, then delete others if the store is full. A failure is only logged."""
        content = save(for_file(tensors), metadata=self._metadata(key, tensors))
        size = _on_disk(len(content))
        if size > self._max_bytes * TRIMMED:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.publish(path, content)
        except OSError as error:  # a full disk costs time, not requests
            if error.errno not in self._warned:
                self._warned.add(error.errno)
                logger.warning("cached references cannot be written: %s: %s", path, error.strerror)
            return
        with self._lock:
            self._unscanned_bytes += size
            is_due = self._unscanned_bytes >= self._max_bytes * SCAN_EVERY
        if is_due:
            self.trim()

    def mark_used(self, key: str) -> None:
        """Make `key` the most recently used entry, if it is there."""
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
                    logger.warning("%s cannot be deleted: %s", entry.path, error.strerror)
                    continue
                total -= entry.num_bytes

    def newest(self) -> list[str]:
        """Return the keys of this encoder, the most recently used first."""
        entries = sorted(self._scan_folder(self._root / self._form.encoder), reverse=True)
        return [entry.path.stem for entry in entries if entry.path.suffix == SUFFIX]

    def _scan(self) -> Iterator[_Entry]:
        try:
            folders = [entry.path for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # not created yet, or not readable: writing reports it
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

    def _metadata(self, key: str, tensors: Tensors) -> dict[str, str]:
        return {"key": key, "codec": self._form.encoder, "checksum": _checksum(tensors)}

    def _path(self, key: str) -> Path:
        return self._root / self._form.encoder / f"{key}{SUFFIX}"


def _on_disk(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _checksum(tensors: Tensors) -> str:
    """Hash names, types, shapes and values; integers as int64, which they are in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        same = tensor if tensor.is_floating_point() else tensor.long()
        digest.update(f"{name} {same.dtype} {list(same.shape)} ".encode())
        digest.update(same.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
