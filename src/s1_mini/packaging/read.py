"""Read a `.tar.gz` member by member in bounded memory, and not a byte more of it than an artifact can have.

What a member says of itself is looked at before anything of it is unpacked: what it is, its path, its size. A few
kilobytes of gzip may unpack to gigabytes, and a tar may hide them in what stands before a member, too.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from s1_mini.exceptions import PackageError
from s1_mini.packaging import manifest as manifest_file

# Weights do not get much smaller by packing; text and compiled kernels do, and are small.
_MOST_PER_PACKED_BYTE = 4
_MOST_BESIDE = 256 * 2**20
_HEADER_BYTES = 16 * 2**10  # of one member; a path of 1,024 bytes takes 3 KiB
_BLOCK_BYTES = 64 * 2**10  # that tarfile asks for at once
_BROKEN = (
    *(tarfile.TarError, gzip.BadGzipFile, zlib.error),
    *(ValueError, ArithmeticError, LookupError, EOFError, RecursionError),  # from damaged headers
)


class _Unpacked:
    """The bytes of a tar, as far as they are allowed; tarfile asks for blocks, so for some before their time."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file, self._left = file, 0

    def allow(self, num_bytes: int) -> None:
        """Let this many be read from now on, and a block more."""
        self._left = num_bytes + _BLOCK_BYTES

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes. Raises `PackageError` beyond what is allowed."""
        block = self._file.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise PackageError(f"what stands before a file has more than {_HEADER_BYTES:,} bytes")
        return block


def read_members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Give every plain file of an archive with what is in it, in order. Raises `PackageError` for anything else.

    Unpacked, all together may have four times the bytes of the archive and 256 MiB.
    """
    most = _MOST_PER_PACKED_BYTE * archive.stat().st_size + _MOST_BESIDE
    names: dict[str, None] = {}
    total = 0
    with gzip.open(archive) as file:
        source = _Unpacked(file)
        source.allow(_HEADER_BYTES)
        with tarfile.open(fileobj=source, mode="r|", bufsize=_BLOCK_BYTES) as tar:  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                _check_member(member)
                if member.name in names:
                    raise PackageError(f"{member.name!r} is there twice")
                names[member.name] = None
                if len(names) > manifest_file.MAX_FILES:
                    raise PackageError(f"there are more than {manifest_file.MAX_FILES:,} files")
                total += member.size
                if total > most:
                    raise PackageError(
                        f"unpacked it would have more than {most:,} bytes: {member.name!r} alone has {member.size:,}, "
                        f"the archive {archive.stat().st_size:,}"
                    )
                source.allow(member.size + tarfile.BLOCKSIZE)
                content = tar.extractfile(member)
                assert content is not None
                yield member, content
                source.allow(_HEADER_BYTES)
    manifest_file.check_names(list(names))


def _check_member(member: tarfile.TarInfo) -> None:
    manifest_file.check_name(member.name)
    if not member.isreg() or member.issparse():
        kinds = (
            (member.issym(), "a link"),
            (member.islnk(), "a hard link"),
            (member.isdev(), "a device or pipe"),
            (member.isdir(), "a folder"),
            (member.issparse(), "a file with holes"),
        )
        kind = next((kind for is_kind, kind in kinds if is_kind), "no plain file")
        raise PackageError(f"{member.name!r} is {kind}; only plain files may be in an artifact")
    if member.size < 0:
        raise PackageError(f"{member.name!r} says that it has {member.size} bytes")


@contextmanager
def named_errors(archive: Path) -> Iterator[None]:
    """Turn what a missing, unreadable or damaged archive leads to into a `PackageError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise PackageError(f"{archive} is missing") from None
    except gzip.BadGzipFile as error:
        raise PackageError(f"{archive} is no whole .tar.gz; was it cut off? ({error})") from None
    except OSError as error:
        raise PackageError(f"{archive} cannot be read: {error.strerror or error}") from None
    except _BROKEN as error:
        raise PackageError(f"{archive} is no whole .tar.gz; was it cut off? ({error})") from None
