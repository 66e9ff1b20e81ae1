"""Prove that an artifact is what its manifest says, before anything of it is unpacked, loaded or run.

What is refused, each by name: a file changed, missing or not listed; a link, a device or anything else that is no plain
file; a path that is absolute or leads out; a name that is both a file and a folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from s1_mini.exceptions import PackageError
from s1_mini.packaging import manifest as manifest_file
from s1_mini.packaging.manifest import Content, Manifest
from s1_mini.packaging.read import named_errors, read_members
from s1_mini.weights.write import new_directory

_CHUNK_BYTES = 2**20
_HASHING_THREADS = 4
_JUNCTION = 0xA000_0003  # stat.IO_REPARSE_TAG_MOUNT_POINT, which Python has on Windows only
_NOT_OURS = ("lost+found",)  # what a volume that is mounted as the folder has of its own
_PYTHON = "__pycache__"  # what the toolkits' Python leaves beside the code that it ran


def is_packaged(directory: Path) -> bool:
    """Tell whether a directory says of itself what is in it."""
    return os.path.lexists(directory / manifest_file.NAME)


def verify_directory(directory: Path) -> Manifest:
    """Prove an unpacked artifact, every byte of it. Raises `PackageError` naming what is wrong."""
    sizes = dict(_walk(directory))
    if manifest_file.NAME not in sizes:
        raise PackageError(f"{directory} has no {manifest_file.NAME}: it is no artifact of s1-mini package")
    if sizes.pop(manifest_file.NAME) > manifest_file.MAX_BYTES:
        raise PackageError(f"{manifest_file.NAME} is larger than {manifest_file.MAX_BYTES:,} bytes")
    manifest = Manifest.from_bytes((directory / manifest_file.NAME).read_bytes())
    _check_listed(manifest, sizes)
    _check_changed(name for name, size in sizes.items() if size != manifest.files[name].size)  # before any is read
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        hashes = pool.map(lambda name: _hash_file(directory / name), sizes)
        _check_contents(manifest, {name: Content(one, sizes[name]) for name, one in zip(sizes, hashes, strict=True)})
    return manifest


def _walk(directory: Path) -> Iterator[tuple[str, int]]:
    """Give path and size of every plain file; anything else is refused."""
    for place, folders, files in os.walk(directory, onerror=_refuse_unreadable):
        folders[:] = sorted(name for name in folders if name != _PYTHON and name not in _NOT_OURS)
        for name in (*folders, *sorted(files)):
            path = Path(place, name)
            told = path.relative_to(directory).as_posix()
            status = path.lstat()
            check_kind(told, status)
            if not stat.S_ISDIR(status.st_mode):
                yield told, status.st_size


def _refuse_unreadable(error: OSError) -> None:
    raise PackageError(f"{error.filename} cannot be read: {error.strerror}")


def check_kind(name: str, status: os.stat_result) -> None:
    """Raise `PackageError` for what is neither a plain file nor a folder; a junction of Windows passes for a folder."""
    if getattr(status, "st_reparse_tag", 0) == _JUNCTION:
        raise PackageError(f"{name!r} is a link; only plain files may be in an artifact")
    kinds = (
        (stat.S_ISLNK, "a link"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    for is_kind, kind in kinds:
        if is_kind(status.st_mode):
            raise PackageError(f"{name!r} is {kind}; only plain files may be in an artifact")


def _hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _hash(file)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from None


def _hash(file: IO[bytes]) -> str:
    sha256 = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        sha256.update(chunk)
    return sha256.hexdigest()


def verify_archive(archive: Path) -> Manifest:
    """Prove a `.tar.gz` in one pass that writes nothing. Raises `PackageError` naming what is wrong."""
    contents: dict[str, Content] = {}
    text = b""
    with named_errors(archive):
        for member, file in read_members(archive):
            if member.name != manifest_file.NAME:
                contents[member.name] = Content(_hash(file), member.size)
                continue
            if member.size > manifest_file.MAX_BYTES:
                raise PackageError(f"{manifest_file.NAME} is larger than {manifest_file.MAX_BYTES:,} bytes")
            text = file.read()
    if not text:
        raise PackageError(f"{archive} has no {manifest_file.NAME}: it is no artifact of s1-mini package")
    manifest = Manifest.from_bytes(text)
    _check_listed(manifest, contents)
    _check_contents(manifest, contents)
    return manifest


def unpack_archive(archive: Path, directory: Path) -> Manifest:
    """Prove a `.tar.gz`, then unpack it into a new folder. Raises `PackageError`, and then leaves no folder."""
    manifest = verify_archive(archive)
    with new_directory(directory) as folder, named_errors(archive):
        for member, file in read_members(archive):
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                while chunk := file.read(_CHUNK_BYTES):
                    target.write(chunk)
    return manifest


def _check_listed(manifest: Manifest, found: Mapping[str, object]) -> None:
    missing = sorted(set(manifest.files) - set(found))
    more = sorted(set(found) - set(manifest.files))
    if missing:
        raise PackageError(f"{_some(missing)} missing; {manifest_file.NAME} lists {len(manifest.files)} files")
    if more:
        raise PackageError(f"{_some(more)} not listed in {manifest_file.NAME}")


def _check_contents(manifest: Manifest, found: Mapping[str, Content]) -> None:
    _check_changed(name for name, content in found.items() if content != manifest.files[name])


def _check_changed(names: Iterable[str]) -> None:
    if changed := sorted(names):
        raise PackageError(f"{_some(changed)} not what {manifest_file.NAME} says: changed after it was packaged")


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
