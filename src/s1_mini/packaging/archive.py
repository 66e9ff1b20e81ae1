"""Write a reproducible `.tar.gz`, streamed: fixed times, owners, modes and order; no file is held or copied.

One gzip stream whose parts are packed as their content deserves: text is deflated, tensors, which no deflation makes
smaller, are stored as they are, in blocks that no version of zlib has a say in.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable
from types import TracebackType
from typing import BinaryIO, Self

from s1_mini.weights.members import Chunk

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # gzip, deflated, no name, no time, unknown system
_MAX_STORED = 65_535
_LEVEL = 6


class GzipWriter:
    """A gzip stream into `file`, either deflated or stored from part to part. Used in a `with` block."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._crc = 0
        self._size = 0
        self._file.write(_HEADER)

    def deflate(self, data: Chunk) -> None:
        """Write `data` packed small."""
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._count(data)
        self._file.write(packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH))

    def store(self, data: Chunk) -> None:
        """Write `data` as it is."""
        self._count(data)
        view = memoryview(data)
        for start in range(0, len(view), _MAX_STORED):
            block = view[start : start + _MAX_STORED]
            self._file.write(b"\x00" + len(block).to_bytes(2, "little") + (len(block) ^ 0xFFFF).to_bytes(2, "little"))
            self._file.write(block)

    def _count(self, data: Chunk) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.write(b"\x01\x00\x00\xff\xff")  # the last block, with nothing in it
            self._file.write(self._crc.to_bytes(4, "little") + (self._size & 0xFFFF_FFFF).to_bytes(4, "little"))


class ArchiveWriter:
    """A tar archive in a gzip stream, member after member. Used in a `with` block."""

    def __init__(self, file: BinaryIO) -> None:
        self._gzip = GzipWriter(file)
        self._written = 0

    def add(self, name: str, size: int, chunks: Iterable[Chunk], *, packs: bool) -> None:
        """Write one file; `chunks` have `size` bytes together. With `packs` it is deflated."""
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o644, 0
        write = self._gzip.deflate if packs else self._gzip.store
        given = 0
        self._gzip.store(header := member.tobuf(tarfile.PAX_FORMAT, "utf-8"))
        for chunk in chunks:
            write(chunk)
            given += len(chunk)
        assert given == size, f"{name}: {given} bytes came and {size} were announced"
        self._gzip.store(bytes(-size % tarfile.BLOCKSIZE))
        self._written += len(header) + size + -size % tarfile.BLOCKSIZE

    def __enter__(self) -> Self:
        self._gzip.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            end = 2 * tarfile.BLOCKSIZE
            self._gzip.store(bytes(end + -(self._written + end) % tarfile.RECORDSIZE))
        self._gzip.__exit__(kind, error, trace)
