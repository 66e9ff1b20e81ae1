"""The manifest of an artifact, and its verification before any of its files is unpacked, loaded or run.

A manifest has the SHA-256 and size of every file, and the versions that wrote it.

An error names the refused files: a file that is changed, missing or not listed; a link, a device or anything else that
is not a plain file; a path that is absolute or leads out of the artifact; a name that is both a file and a folder.
An archive is read member by member in bounded memory. A megabyte of gzip may unpack to a gigabyte, so each header
is checked before the content after it is unpacked, and the size of the headers is limited.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from s1_mini.config import EngineConfig
from s1_mini.exceptions import PackageError
from s1_mini.families.find import Checkpoint, find_checkpoint
from s1_mini.weights.hub import ORIGIN_KEY, Origin, read_origin
from s1_mini.weights.write import new_directory

MANIFEST = "manifest.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_FILES = 10_000
_MAX_NAME = 255  # bytes of one part of a path; limit of file systems
_MAX_PATH = 1024  # bytes; limit of a key of S3

_SHA256 = re.compile("[0-9a-f]{64}")
_NO_LETTERS = re.compile("[\x00-\x1f\ud800-\udfff]")  # control characters, and surrogates (invalid UTF-8)
_FOREIGN = re.compile(r'[<>:"|?*]')  # invalid on Windows; a colon opens an alternate data stream
_DEVICE = re.compile(r"con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]", re.IGNORECASE)
_CHUNK_BYTES = 2**20
_HASHING_THREADS = 4
_JUNCTION = 0xA000_0003  # stat.IO_REPARSE_TAG_MOUNT_POINT, which Python defines on Windows only
_IGNORED = {"lost+found", "__pycache__"}  # created by file systems of volumes, and by Python when it imports code/
# The limit for all unpacked bytes is _MOST_PER_PACKED_BYTE times the size of the archive plus _MOST_BESIDE: weights
# compress little; text and compiled kernels compress more, but are small.
_MOST_PER_PACKED_BYTE = 4
_MOST_BESIDE = 256 * 2**20
_HEADER_BYTES = 16 * 2**10  # limit for the headers of one member; a path of 1,024 bytes takes 2.5 KiB
_BLOCK_BYTES = 64 * 2**10  # tarfile reads blocks of this size
_KINDS = {
    tarfile.SYMTYPE: "a link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.DIRTYPE: "a folder",
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE), "a device or pipe"),
}
_GZIP_MAGIC = b"\x1f\x8b"
_BROKEN = (
    *(tarfile.TarError, gzip.BadGzipFile, zlib.error),
    *(ValueError, ArithmeticError, LookupError, EOFError, RecursionError),  # raised for damaged headers
)


class Content(NamedTuple):
    """One file's content: its SHA-256 in hexadecimal and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """All other files of an artifact by path, the versions that wrote them, and the origin of the weights, if known."""

    engine: str
    torch: str
    files: Mapping[str, Content]
    origin: Origin | None = None

    @property
    def content_sha256(self) -> str:
        """One hash of the whole content, the same for both forms of an artifact (see `write`)."""
        lines = (f"{one.sha256} {one.size} {name}\n" for name, one in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON, the same bytes for the same content."""
        files = {name: {"sha256": one.sha256, "bytes": one.size} for name, one in sorted(self.files.items())}
        value = {
            "format": FORMAT,
            "engine": self.engine,
            "torch": self.torch,
            **({} if self.origin is None else {ORIGIN_KEY: self.origin.data()}),
            "content_sha256": self.content_sha256,
            "files": files,
        }
        return (json.dumps(value, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Parse a manifest. Raises `PackageError` if it is invalid, has another format, or contradicts itself."""
        try:
            value = json.loads(text)
            manifest = cls(str(value["engine"]), str(value["torch"]), _read_files(value["files"]), read_origin(value))
            form, content = value["format"], value["content_sha256"]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise PackageError(f"{MANIFEST} is not a manifest written by `s1-mini package`") from None
        if form != FORMAT:
            raise PackageError(f"{MANIFEST} has format {repr(form)[:20]}; package it again for format {FORMAT}")
        check_names(manifest.files)
        if content != manifest.content_sha256:
            raise PackageError(f"{MANIFEST} contradicts itself: content_sha256 is not that of its files")
        return manifest


def _read_files(value: Mapping[str, Any]) -> dict[str, Content]:
    files = {name: Content(one["sha256"], int(one["bytes"])) for name, one in value.items()}
    if not all(isinstance(one.sha256, str) and _SHA256.fullmatch(one.sha256) for one in files.values()):
        raise ValueError("a hash is not valid")
    return files


def check_names(names: Mapping[str, Any] | list[str]) -> None:
    """Raise `PackageError` for too many paths, or for a path that is unsafe, repeated, or both a file and a folder."""
    if len(names) > MAX_FILES:
        raise PackageError(f"there are more than {MAX_FILES:,} files")
    seen: dict[str, str] = {}
    for name in names:
        check_name(name)
        folded = name.casefold()  # Windows and macOS ignore case
        if folded in seen:
            other = "occurs twice" if seen[folded] == name else f"and {seen[folded]!r} differ only in case"
            raise PackageError(f"{name!r} {other}")
        seen[folded] = name
    for folded, name in seen.items():
        for end in (at for at, letter in enumerate(folded) if letter == "/"):
            if folded[:end] in seen:
                raise PackageError(f"{seen[folded[:end]]!r} is both a file and the folder of {name!r}")


def check_name(name: str) -> None:
    """Raise `PackageError` for a path that leads out of its folder, or that is invalid on some system."""
    if len(name.encode("utf-8", "replace")) > _MAX_PATH:
        raise PackageError(f"{name[:80]!r}… is longer than {_MAX_PATH:,} bytes")
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        raise PackageError(f"{name!r} is an absolute path")
    parts = name.split("/")
    if {"", ".", ".."} & {*parts}:
        raise PackageError(f"{name!r} {'leads out of its folder' if '..' in parts else 'is not a plain path'}")
    if "\\" in name or _NO_LETTERS.search(name):
        raise PackageError(f"{name!r} has characters that are not allowed in a path")
    for part in parts:
        if _FOREIGN.search(part) or part.endswith((".", " ")) or _DEVICE.fullmatch(part.partition(".")[0].rstrip(" ")):
            raise PackageError(f"{name!r} cannot be a path on Windows; give {part!r} another name")
        if len(part.encode()) > _MAX_NAME:
            raise PackageError(f"{part[:80]!r}… is longer than {_MAX_NAME} bytes, the limit for each part of a path")


def open_checkpoint(config: EngineConfig, *, with_weights: bool = True) -> Checkpoint:
    """Find the checkpoint of the settings; verify it if it is an unpacked artifact, otherwise check its files.

    With `with_weights=False`, only small files are downloaded, and nothing is checked. Raises `CheckpointError` or
    `ConfigurationError`.
    """
    checkpoint = find_checkpoint(config.checkpoint_path, with_weights=with_weights)
    if with_weights and is_packaged(checkpoint.directory):
        verify_directory(checkpoint.directory)
    elif with_weights:
        checkpoint.check_files()
    return checkpoint


def is_packaged(directory: Path) -> bool:
    return os.path.lexists(directory / MANIFEST)


def verify_directory(directory: Path) -> Manifest:
    """Verify every byte of an unpacked artifact. Raises `PackageError` with the reason."""
    sizes = dict(_walk(directory))
    text = None
    if sizes.pop(MANIFEST, None) is not None:
        with _readable(directory / MANIFEST) as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
    manifest = _parse_manifest(text, directory)
    _check_listed(manifest, sizes)
    _check_changed(
        name for name, size in sizes.items() if size != manifest.files[name].size
    )  # before reading any content
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        hashes = pool.map(lambda name: _hash_file(directory / name), sizes)
        _check_changed(name for name, one in zip(sizes, hashes, strict=True) if one != manifest.files[name].sha256)
    return manifest


def _parse_manifest(text: bytes | None, place: Path) -> Manifest:
    if text is None:
        raise PackageError(f"{place} has no {MANIFEST}: it is not an artifact of `s1-mini package`")
    if len(text) > MAX_MANIFEST_BYTES:
        raise PackageError(f"{MANIFEST} is larger than {MAX_MANIFEST_BYTES:,} bytes")
    return Manifest.from_bytes(text)


def _walk(directory: Path) -> Iterator[tuple[str, int]]:
    """Yield path and size of every plain file; anything else is refused."""
    for place, folders, files in os.walk(directory, onerror=_refuse_unreadable):
        folders[:] = sorted(set(folders) - _IGNORED)
        for name in (*folders, *sorted(files)):
            path = Path(place, name)
            relative = path.relative_to(directory).as_posix()
            status = path.lstat()
            check_kind(relative, status)
            if not stat.S_ISDIR(status.st_mode):
                yield relative, status.st_size


def _refuse_unreadable(error: OSError) -> None:
    raise PackageError(f"{error.filename} cannot be read: {error.strerror}")


def check_kind(name: str, status: os.stat_result) -> None:
    """Raise `PackageError` for anything but a plain file or folder, and for a Windows junction."""
    if getattr(status, "st_reparse_tag", 0) == _JUNCTION:
        raise PackageError(f"{name!r} is a link; only plain files may be in an artifact")
    kinds = {stat.S_IFLNK: "a link", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe"}
    kinds[stat.S_IFSOCK] = "a socket"
    if kind := kinds.get(stat.S_IFMT(status.st_mode)):
        raise PackageError(f"{name!r} is {kind}; only plain files may be in an artifact")


@contextmanager
def _readable(path: Path) -> Iterator[io.BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from None


def _hash_file(path: Path) -> str:
    with _readable(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_archive(archive: Path) -> Manifest:
    """Verify a `.tar.gz` in one pass that writes nothing. Raises `PackageError` with the reason."""
    contents: dict[str, Content] = {}
    text = None
    with _named_errors(archive):
        for member, file in read_members(archive):
            if member.name == MANIFEST:
                text = file.read(MAX_MANIFEST_BYTES + 1)
                if len(text) > MAX_MANIFEST_BYTES:
                    break  # `_parse_manifest` raises the error
            else:
                contents[member.name] = Content(hashlib.file_digest(file, "sha256").hexdigest(), member.size)
    manifest = _parse_manifest(text, archive)
    _check_listed(manifest, contents)
    _check_changed(name for name, content in contents.items() if content != manifest.files[name])
    return manifest


def unpack_archive(archive: Path, directory: Path) -> Manifest:
    """Verify a `.tar.gz`, then unpack it into a new folder. Raises `CheckpointError`, and then leaves no folder."""
    manifest = verify_archive(archive)
    with new_directory(directory) as folder, _named_errors(archive):
        for member, file in read_members(archive):
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                shutil.copyfileobj(file, target, _CHUNK_BYTES)
    return manifest


def _check_listed(manifest: Manifest, found: Mapping[str, object]) -> None:
    missing = sorted(set(manifest.files) - set(found))
    more = sorted(set(found) - set(manifest.files))
    if missing:
        raise PackageError(f"{_some(missing)} missing; {MANIFEST} lists {len(manifest.files)} files")
    if more:
        raise PackageError(f"{_some(more)} not listed in {MANIFEST}")


def _check_changed(names: Iterable[str]) -> None:
    if changed := sorted(names):
        raise PackageError(
            f"{_some(changed)} different from {MANIFEST} (size or checksum): changed after packaging; download the "
            "artifact or package it again"
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


class _Unpacked:
    """The unpacked bytes of a .tar.gz, up to a limit plus one block, because tarfile reads whole blocks."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file, self._left = file, 0

    def allow(self, num_bytes: int) -> None:
        self._left = num_bytes + _BLOCK_BYTES

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes. Raises `PackageError` beyond the limit."""
        block = self._file.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise PackageError(f"the headers before a file exceed {_HEADER_BYTES:,} bytes")
        return block


def read_members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, io.BufferedReader]]:
    """Yield every plain file of an archive with its content, in order. Raises `PackageError` for anything else.

    For a damaged archive, the errors of gzip and tarfile are raised; `_named_errors` converts them.

    The unpacked files may have at most four times the size of the archive plus 256 MiB.
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
                    raise PackageError(f"{member.name!r} occurs twice")
                names[member.name] = None
                if len(names) > MAX_FILES:
                    raise PackageError(f"there are more than {MAX_FILES:,} files")
                total += member.size
                if total > most:
                    raise PackageError(
                        f"the unpacked files exceed the limit of {most:,} bytes for an archive of "
                        f"{archive.stat().st_size:,} bytes: {member.name!r} is {member.size:,} bytes"
                    )
                source.allow(member.size + tarfile.BLOCKSIZE)
                content = tar.extractfile(member)
                assert isinstance(content, io.BufferedReader)
                yield member, content
                source.allow(_HEADER_BYTES)
    check_names(list(names))


def _check_member(member: tarfile.TarInfo) -> None:
    if member.name == "." or member.name.startswith("./"):
        raise PackageError(
            f"the names in the archive begin with './' ({member.name!r}), as `tar -czf model.tar.gz .` writes them, "
            f"but {MANIFEST} has names without it; use the file that `s1-mini package --output model.tar.gz` writes"
        )
    check_name(member.name)
    if not member.isreg() or member.issparse():
        kind = "a file with holes" if member.issparse() else _KINDS.get(member.type, "not a plain file")
        raise PackageError(f"{member.name!r} is {kind}; only plain files may be in an artifact")
    if member.size < 0:
        raise PackageError(f"{member.name!r} declares a size of {member.size} bytes")


@contextmanager
def _named_errors(archive: Path) -> Iterator[None]:
    """Convert the errors of a missing, unreadable or damaged archive to a `PackageError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise PackageError(f"{archive} is missing") from None
    except _BROKEN as error:
        with _readable(archive) as file:
            is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        fault = f"is not a complete .tar.gz; was it cut off? ({error})" if is_gzip else "is not a .tar.gz"
        raise PackageError(f"{archive} {fault}") from None
    except OSError as error:
        raise PackageError(f"{archive} cannot be read or unpacked: {error.strerror or error}") from None
