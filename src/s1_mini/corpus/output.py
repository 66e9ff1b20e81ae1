"""Where a corpus is written: a folder, or a prefix on S3. What has its name is whole, whenever the writer was killed.

A folder gets files under temporary names, which are synced to the disk before they are renamed. S3 shows an object when
all of it has come; a folder of files has no such moment there, so what counts is the manifest's entry, written last.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from s1_mini.aws.place import S3Place
from s1_mini.corpus.errors import CorpusError
from s1_mini.files import files

AT_ONCE = 16  # objects that are sent or read at a time
_TEMPORARY = re.compile(r"\.s1-mini-[0-9a-f]{16}\.tmp")
_DELETED_AT_ONCE = 1000  # as many as S3 takes


class Output(Protocol):
    """A place for files, by names with slashes. All methods raise `CorpusError` with the next thing to do."""

    def names(self, folder: str) -> set[str]:
        """Give the names directly in a folder; none where there is no such folder."""

    def read(self, name: str) -> bytes | None:
        """Give a file's content; None where there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, or not at all; one that was there is replaced."""

    def write_folder(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Write a folder of files; one that was there is replaced."""

    def remove(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it; it may be gone already."""


def open_output(place: str) -> Output:
    """Open `s3://bucket/prefix` or a folder; nothing is made yet. Raises `CorpusError` or `ConfigurationError`."""
    return S3Output(S3Place.parse(place)) if place.startswith("s3://") else FolderOutput(Path(place))


def is_temporary(name: str) -> bool:
    """Tell whether a name is that of something half written."""
    return _TEMPORARY.fullmatch(name) is not None


class FolderOutput:
    """A folder of this machine, or one that all machines share."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise CorpusError(f"{folder} is a file; name a folder for the output")
        self._folder = folder

    def names(self, folder: str) -> set[str]:
        """List a folder."""
        with self._told("listed"):
            path = self._folder / folder
            return {one.name for one in path.iterdir()} if path.is_dir() else set()

    def read(self, name: str) -> bytes | None:
        """Read a file."""
        with self._told("read"):
            path = self._folder / name
            return path.read_bytes() if path.is_file() else None

    def write(self, name: str, content: bytes) -> None:
        """Write, sync, rename, sync the folder."""

        def fill(temporary: Path) -> None:
            _write_synced(temporary, content)

        self._put(name, fill, files.replace)

    def write_folder(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Do so with a folder."""

        def fill(temporary: Path) -> None:
            temporary.mkdir()
            for each, content in contents.items():
                _write_synced(temporary / each, content)
            files.sync_folder(temporary)

        def place(temporary: Path, target: Path) -> None:
            if target.exists():
                shutil.rmtree(target)
            files.rename(temporary, target)

        self._put(name, fill, place)

    def remove(self, name: str) -> None:
        """Delete a file or a folder."""
        with self._told("tidied"):
            path = self._folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _put(self, name: str, fill: Callable[[Path], None], place: Callable[[Path, Path], None]) -> None:
        with self._told("written"):
            target = self._folder / name
            temporary = target.with_name(f".s1-mini-{secrets.token_hex(8)}.tmp")
            target.parent.mkdir(parents=True, exist_ok=True)
            fill(temporary)
            place(temporary, target)
            files.sync_folder(target.parent)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{error.strerror or error} ({error.filename})" if error.filename else error.strerror or error
            raise CorpusError(
                f"{self._folder} cannot be {what}: {reason}; mend that and run the same again, which goes on from there"
            ) from None


class S3Output:
    """A prefix of a bucket."""

    def __init__(self, place: S3Place) -> None:
        from s1_mini.aws.clients import Clients
        from s1_mini.aws.failures import About

        needs = "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket, s3:AbortMultipartUpload"
        self._place = place
        self._about = About(doing=f"output {place}", bucket=place.bucket, needs=needs)
        with self._told():
            self._client = Clients()["s3"]

    def names(self, folder: str) -> set[str]:
        """List a prefix."""
        prefix = self._place.join(f"{folder}/" if folder else "")
        with self._told():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._place.bucket, Prefix=prefix, Delimiter="/"
            )
            found = [
                *(one["Key"] for page in pages for one in page.get("Contents", [])),
                *(one["Prefix"] for page in pages for one in page.get("CommonPrefixes", [])),
            ]
        return {name.removeprefix(prefix).rstrip("/") for name in found} - {""}

    def read(self, name: str) -> bytes | None:
        """Get an object."""
        with self._told():
            try:
                found = self._client.get_object(Bucket=self._place.bucket, Key=self._place.join(name))
            except self._client.exceptions.NoSuchKey:
                return None
            content: bytes = found["Body"].read()
            return content

    def write(self, name: str, content: bytes) -> None:
        """Put an object, a large one in parts."""
        with self._told():
            self._client.upload_fileobj(io.BytesIO(content), self._place.bucket, self._place.join(name))

    def write_folder(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Put objects, several at a time; those of an earlier try were swept or have the same names."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda each: self.write(f"{name}/{each}", contents[each]), contents))

    def remove(self, name: str) -> None:
        """Delete an object and all below its name."""
        with self._told():
            key = self._place.join(name)
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._place.bucket, Prefix=f"{key}/", PaginationConfig={"PageSize": _DELETED_AT_ONCE}
            )
            self._client.delete_object(Bucket=self._place.bucket, Key=key)
            for page in pages:
                found = [{"Key": one["Key"]} for one in page.get("Contents", [])]
                if found:
                    self._client.delete_objects(Bucket=self._place.bucket, Delete={"Objects": found, "Quiet": True})

    def _told(self) -> Any:
        from s1_mini.aws.failures import explained

        return explained(self._about, CorpusError)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
