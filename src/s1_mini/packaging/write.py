"""Write an artifact in one of its two forms, each file hashed while it is written, the manifest last.

`archive` is one reproducible `.tar.gz` for `ModelDataUrl`: fixed times, owners, modes and order. `prefix` is a folder
of plain files for an uncompressed `ModelDataSource`. A failure leaves nothing behind, and nothing is overwritten.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

import torch

from s1_mini.exceptions import PackageError
from s1_mini.files import files
from s1_mini.packaging import manifest as manifest_file
from s1_mini.packaging.manifest import Content, Manifest
from s1_mini.version import __version__
from s1_mini.weights.origin import Origin
from s1_mini.weights.write import Chunk, Member, new_directory, write_member, written

Progress = Callable[[int], None]  # called with the number of bytes written since the last call

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, no time, unknown system
_MAX_BLOCK = 2**16 - 1  # bytes of a stored block


def write_archive(
    members: Iterable[Member], output: Path, *, origin: Origin | None = None, progress: Progress = lambda _: None
) -> Manifest:
    """Write a new `.tar.gz`, the same bytes for the same members. Raises `PackageError`."""
    contents: dict[str, Content] = {}
    with _new_file(output) as path, path.open("wb") as file, _Gzip(file) as archive:
        for member in members:
            passing = _Passing(member.chunks(), progress)
            _add(archive, member, passing)
            contents[member.name] = passing.content()
        manifest = _manifest(contents, origin)
        text = written(manifest_file.NAME, manifest.to_bytes().decode())
        _add(archive, text, text.chunks())
        archive.write(bytes(2 * tarfile.BLOCKSIZE))
        archive.write(bytes(-archive.size % tarfile.RECORDSIZE))
    return manifest


def write_prefix(
    members: Iterable[Member], output: Path, *, origin: Origin | None = None, progress: Progress = lambda _: None
) -> Manifest:
    """Write a new folder of plain files. Raises `PackageError`."""
    contents: dict[str, Content] = {}
    with new_directory(output) as folder:
        for member in members:
            passing = _Passing(member.chunks(), progress)
            write_member(folder, member, passing)
            contents[member.name] = passing.content()
        manifest = _manifest(contents, origin)
        (folder / manifest_file.NAME).write_bytes(manifest.to_bytes())
    return manifest


class _Gzip:
    """One gzip stream in which each write is deflated or stored: `gzip.GzipFile` has one level for all."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._crc, self.size = file, 0, 0

    def __enter__(self) -> Self:
        self._file.write(_GZIP_HEADER)
        return self

    def write(self, data: Chunk, *, deflated: bool = False) -> None:
        if deflated:
            packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            self._file.write(packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH))
        else:  # zlib's level 0 would copy the data several times
            for start in range(0, len(data), _MAX_BLOCK):
                block = memoryview(data)[start : start + _MAX_BLOCK]
                self._file.write(struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF))
                self._file.write(block)
        self._crc, self.size = zlib.crc32(data, self._crc), self.size + len(data)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._file.write(zlib.compressobj(wbits=-zlib.MAX_WBITS).flush())  # the last block, empty
            self._file.write(struct.pack("<II", self._crc, self.size & 0xFFFF_FFFF))


def _add(archive: _Gzip, member: Member, chunks: Iterable[Chunk]) -> None:
    header = tarfile.TarInfo(member.name)
    header.size, header.mode, header.mtime = member.size, 0o644, 0
    archive.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8"))
    end = archive.size + member.size
    for chunk in chunks:
        archive.write(chunk, deflated=member.packs)
    assert archive.size == end, f"{member.name}: {archive.size - end} bytes more than announced"
    archive.write(bytes(-member.size % tarfile.BLOCKSIZE))


def _manifest(contents: dict[str, Content], origin: Origin | None) -> Manifest:
    return Manifest(__version__, torch.__version__.partition("+")[0], contents, origin)


class _Passing:
    """Chunks on their way into a file, hashed and counted."""

    def __init__(self, chunks: Iterable[Chunk], progress: Progress) -> None:
        self._chunks, self._progress = chunks, progress
        self._hash, self._size = hashlib.sha256(), 0

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._chunks:
            self._hash.update(chunk)
            self._size += len(chunk)
            yield chunk
            self._progress(len(chunk))

    def content(self) -> Content:
        return Content(self._hash.hexdigest(), self._size)


@contextmanager
def _new_file(output: Path) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `output` at the end and removed if anything fails."""
    if output.exists():
        raise PackageError(f"{output} exists already; name a new file")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{output.name}-", dir=output.parent)
        os.close(handle)
    except OSError as error:
        raise PackageError(f"{output} cannot be written: {error.strerror}") from None
    path = Path(name)
    try:
        yield path
        path.chmod(0o644)  # made private by tempfile
        files.rename_to_new(path, output)
    except OSError as error:
        raise PackageError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        path.unlink(missing_ok=True)
