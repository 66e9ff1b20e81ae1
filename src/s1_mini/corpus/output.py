"""The output of a corpus: a folder, or a prefix on S3. A file under its final name is always complete.

S3 objects appear only when they are complete. A folder of objects is not atomic, so it counts as complete once the
manifest has its entry, which is written last.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from s1_mini.aws.place import S3Place
from s1_mini.corpus.rows import CorpusError
from s1_mini.files import files

AT_ONCE = 16  # concurrent requests to S3
_TEMPORARY = re.compile(r"\.s1-mini-[0-9a-f]{16}\.tmp")
_DELETED_AT_ONCE = 1000  # limit of S3


class CorpusOutput(Protocol):
    """Files by their names relative to the output, with slashes. All methods raise `CorpusError` on failure."""

    def names(self, folder: str) -> set[str]:
        """List the names directly in a folder, which may be missing."""

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file; an interruption leaves no partial file."""

    def write_folder(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Write or replace a folder of files."""

    def remove(self, name: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""


def open_output(place: str) -> CorpusOutput:
    """Open `s3://bucket/prefix` or a folder, which need not exist. Raises `CorpusError` or `ConfigurationError`."""
    return S3Output(S3Place.parse(place)) if place.startswith("s3://") else FolderOutput(Path(place))


def is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name) is not None


class FolderOutput:
    """A local folder, or one that all machines share.

    Each file, or folder of files, is written and synced under a temporary name, then renamed.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise CorpusError(f"{folder} is a file; specify a folder for the output")
        self._folder = folder

    def names(self, folder: str) -> set[str]:
        with self._explained("listed"):
            path = self._folder / folder
            return {one.name for one in path.iterdir()} if path.is_dir() else set()

    def read(self, name: str) -> bytes | None:
        with self._explained("read"):
            path = self._folder / name
            return path.read_bytes() if path.is_file() else None

    def write(self, name: str, content: bytes) -> None:
        with self._replacing(name) as temporary:
            _write_synced(temporary, content)

    def write_folder(self, name: str, contents: Mapping[str, bytes]) -> None:
        with self._replacing(name) as temporary:
            temporary.mkdir()
            for each, content in contents.items():
                _write_synced(temporary / each, content)
            files.sync_folder(temporary)

    def remove(self, name: str) -> None:
        with self._explained("cleaned up"):
            path = self._folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def _replacing(self, name: str) -> Iterator[Path]:
        """Yield a temporary path that replaces `name` at the end of the block."""
        with self._explained("written"):
            target = self._folder / name
            temporary = target.with_name(f".s1-mini-{secrets.token_hex(8)}.tmp")
            target.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            if target.is_dir():
                shutil.rmtree(target)
            files.replace(temporary, target)
            files.sync_folder(target.parent)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{error.strerror or error} ({error.filename})" if error.filename else error.strerror or error
            raise CorpusError(
                f"{self._folder} cannot be {what}: {reason}; fix this problem and run the same command again, which "
                "resumes the corpus"
            ) from None


class S3Output:
    """A prefix of a bucket."""

    def __init__(self, place: S3Place) -> None:
        from s1_mini.aws.clients import Clients

        self._place = place
        with self._explained():
            self._client = Clients()["s3"]

    def names(self, folder: str) -> set[str]:
        prefix, found = self._place.join(f"{folder}/" if folder else ""), set()
        for page in self._pages(prefix, Delimiter="/"):
            found |= {one["Key"] for one in page.get("Contents", [])}
            found |= {one["Prefix"] for one in page.get("CommonPrefixes", [])}
        return {name.removeprefix(prefix).rstrip("/") for name in found} - {""}

    def read(self, name: str) -> bytes | None:
        with self._explained():
            try:
                found = self._client.get_object(Bucket=self._place.bucket, Key=self._place.join(name))
            except self._client.exceptions.NoSuchKey:
                return None
            content: bytes = found["Body"].read()
            return content

    def write(self, name: str, content: bytes) -> None:
        with self._explained():
            self._client.upload_fileobj(io.BytesIO(content), self._place.bucket, self._place.join(name))

    def write_folder(self, name: str, contents: Mapping[str, bytes]) -> None:
        # nothing to delete first: objects of an earlier attempt were deleted or have the same names
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda each: self.write(f"{name}/{each}", contents[each]), contents))

    def remove(self, name: str) -> None:
        key = self._place.join(name)
        with self._explained():
            self._client.delete_object(Bucket=self._place.bucket, Key=key)
            for page in self._pages(f"{key}/", PaginationConfig={"PageSize": _DELETED_AT_ONCE}):
                if found := [{"Key": one["Key"]} for one in page.get("Contents", [])]:
                    self._client.delete_objects(Bucket=self._place.bucket, Delete={"Objects": found, "Quiet": True})

    def _pages(self, prefix: str, **options: Any) -> Iterator[dict[str, Any]]:
        with self._explained():
            pages = self._client.get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self._place.bucket, Prefix=prefix, **options)

    def _explained(self) -> Any:
        from s1_mini.aws.failures import About, explained

        needs = "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket, s3:AbortMultipartUpload"
        return explained(About(doing=f"output {self._place}", bucket=self._place.bucket, needs=needs), CorpusError)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
