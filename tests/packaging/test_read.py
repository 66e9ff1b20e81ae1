"""Archives that would unpack to too much are refused by their headers, in little memory."""

from __future__ import annotations

import io
import random
import tarfile
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s1_mini.exceptions import PackageError
from s1_mini.packaging.verify import read_members, unpack_archive, verify_archive

MEBI = 2**20
GIBI = 2**30


@contextmanager
def in_little_memory() -> Iterator[None]:
    """Fail if more than 8 MiB of Python memory are held at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 8 * MEBI
    finally:
        tracemalloc.stop()


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def write_packed(path: Path, *parts: bytes, zeros: int = 0) -> Path:
    """Write a gzip of the parts, followed by `zeros` MiB of zeros."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    with path.open("wb") as file:
        for part in (*parts, *(bytes(MEBI) for _ in range(zeros))):
            file.write(packer.compress(part))
        file.write(packer.flush())
    return path


@pytest.mark.parametrize("told_bytes", [512 * MEBI, 2**62])
def test_a_file_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(tmp_path: Path, told_bytes: int) -> None:
    archive = write_packed(tmp_path / "bomb.tar.gz", header("model.safetensors", told_bytes), zeros=64)

    with (
        in_little_memory(),
        pytest.raises(PackageError, match=r"the unpacked files exceed .*'model\.safetensors' is [\d,]+"),
    ):
        verify_archive(archive)


def test_many_files_that_unpack_to_too_much_are_refused_at_the_first_that_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.packaging.verify._MOST_BESIDE", 16 * MEBI)
    parts = [part for n in range(8) for part in (header(f"{n}.bin", 4 * MEBI), *[bytes(MEBI)] * 4)]
    archive = write_packed(tmp_path / "bomb.tar.gz", *parts)

    with in_little_memory(), pytest.raises(PackageError, match=r"the unpacked files exceed the limit of .*'4\.bin' is"):
        verify_archive(archive)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize("size", [MEBI, 64 * MEBI, 2**62])
def test_metadata_before_a_file_is_bounded(tmp_path: Path, kind: bytes, size: int) -> None:
    """A name of a megabyte, or fields that unpack to gigabytes; tarfile would hold all of it."""
    archive = write_packed(tmp_path / "bomb.tar.gz", header("x", size, kind), zeros=64)

    with in_little_memory(), pytest.raises(PackageError, match="the headers before a file exceed 16,384 bytes"):
        verify_archive(archive)


def test_chained_extension_headers_are_bounded(tmp_path: Path) -> None:
    archive = write_packed(tmp_path / "bomb.tar.gz", header("x", 0, tarfile.XHDTYPE) * 100_000)

    with in_little_memory(), pytest.raises(PackageError, match="the headers before a file exceed"):
        verify_archive(archive)


def test_a_manifest_that_is_too_large_is_named(tmp_path: Path) -> None:
    archive = write_packed(tmp_path / "large.tar.gz", header("manifest.json", 20 * MEBI), zeros=20)

    with pytest.raises(PackageError, match=r"manifest\.json is larger than 16,777,216 bytes"):
        verify_archive(archive)


def test_a_file_with_holes_is_refused(tmp_path: Path) -> None:
    """A gigabyte of holes takes no space in the archive."""
    info = tarfile.TarInfo("model.safetensors")
    info.size = 2 * tarfile.BLOCKSIZE
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(GIBI)}
    content = b"1\n0\n0\n".ljust(tarfile.BLOCKSIZE, b"\0") + bytes(tarfile.BLOCKSIZE)
    archive = write_packed(tmp_path / "holes.tar.gz", info.tobuf(tarfile.PAX_FORMAT), content, bytes(MEBI))

    with pytest.raises(PackageError, match="is a file with holes"):
        verify_archive(archive)


def test_a_duplicate_name_is_refused_before_its_second_content(tmp_path: Path) -> None:
    archive = write_packed(tmp_path / "twice.tar.gz", header("a", 0) * 2, bytes(MEBI))

    members = read_members(archive)
    next(members)
    with pytest.raises(PackageError, match="'a' occurs twice"):
        next(members)


def test_more_files_than_an_artifact_can_have_are_refused(tmp_path: Path) -> None:
    archive = write_packed(tmp_path / "many.tar.gz", *(header(f"{n}", 0) for n in range(10_001)), bytes(MEBI))

    with pytest.raises(PackageError, match="more than 10,000 files"):
        verify_archive(archive)


def test_a_damaged_archive_is_read_or_refused(tmp_path: Path) -> None:
    """The damage is done before packing, so it reaches the header parser."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("config.json", "voices/" + "long" * 40, "é.txt"):
            info = tarfile.TarInfo(name)
            info.size = 600
            tar.addfile(info, io.BytesIO(bytes(600)))
    content, draw = buffer.getvalue(), random.Random(1)

    for count in range(300):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 2, 8))):
            start = draw.choice([at for at in range(0, len(content) - 512, 512) if content[at]])
            damaged[start + draw.randrange(512)] = draw.randrange(256)
            if content[start + 257 : start + 262] == b"ustar":  # set the header's checksum
                block = damaged[start : start + 148] + b" " * 8 + damaged[start + 156 : start + 512]
                damaged[start + 148 : start + 156] = b"%06o\0 " % sum(block)
        archive = write_packed(tmp_path / f"{count}.tar.gz", bytes(damaged))
        with pytest.raises(PackageError):  # at the least because it has no manifest
            unpack_archive(archive, tmp_path / "model")
        assert not (tmp_path / "model").exists()
