"""Inputs and responses of asynchronous invocations, in a local folder or on S3. Calls block."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from s1_mini.aws.clients import Clients
from s1_mini.aws.failures import About, explained
from s1_mini.aws.place import BUCKET, S3Place
from s1_mini.exceptions import ConfigurationError
from s1_mini.files import files
from s1_mini.server.errors import BodyError, BodyTooLargeError

MAX_ASYNC_S = 3600
MAX_BYTES_VARIABLE = "S1_MINI_SERVER_SAGEMAKER_MAX_ASYNC_BYTES"
RESERVED_BYTES = 4096  # a failure is a JSON object whose message has at most 600 characters

_S3 = re.compile(rf"s3://({BUCKET})/(.*)", re.DOTALL)


def open_store(place: str) -> AsyncStore:
    """Open the store at `place`: `s3://bucket/prefix`, or a folder, which is created. Raises `ConfigurationError`."""
    if place.startswith("s3://"):
        return S3Store(place)
    return FolderStore(Path(place))


class FolderStore:
    """A folder; locations are `file://` URLs, and only files inside the folder can be read."""

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"async store {str(directory)!r} cannot be created: {error.strerror}") from None
        self._directory = directory.resolve()
        for left in self._directory.glob(".*.reserved"):  # left by a killed process, if older than any invocation
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > 2 * MAX_ASYNC_S:
                    left.unlink()

    def read(self, location: str, max_bytes: int) -> bytes:
        """Read a `file://` location or a relative path. Raises `BodyError` or `BodyTooLargeError`."""
        try:
            parts = urlsplit(location)
            path = (self._directory / local_path(parts.path)).resolve()
            is_inside = path.is_relative_to(self._directory) and path.is_file()
            if parts.scheme not in ("", "file") or parts.netloc or not is_inside:
                raise BodyError(f"the input {location[:200]!r} is not a file in the folder {self._directory}")
            with path.open("rb") as file:
                content = file.read(max_bytes + 1)
        except (OSError, ValueError):  # `ValueError` for a malformed URL
            raise BodyError(f"the input {location[:200]!r} cannot be read") from None
        if len(content) > max_bytes:
            raise BodyTooLargeError(max_bytes, MAX_BYTES_VARIABLE)
        return content

    def locate(self, name: str) -> str:
        return (self._directory / name).as_uri()

    def reserve(self, name: str) -> None:
        """Write a hidden file that reserves space, so that a failure can be reported even if the disk is full."""
        try:
            self._reserved(name).write_bytes(bytes(RESERVED_BYTES))
        except OSError:
            self.release(name)
            raise

    def write(self, name: str, content: bytes, content_type: str) -> None:  # noqa: ARG002 - a folder keeps no types
        files.publish(self._directory / name, content)

    def write_reserved(self, reserved: str, name: str, content: bytes, content_type: str) -> None:  # noqa: ARG002
        """Overwrite the reserved file, which needs no additional space, and rename it."""
        path = self._reserved(reserved)
        with path.open("r+b") as file:
            file.write(content[:RESERVED_BYTES])
            file.truncate()
        files.replace(path, self._directory / name)

    def release(self, reserved: str) -> None:
        self._reserved(reserved).unlink(missing_ok=True)

    def _reserved(self, name: str) -> Path:
        return self._directory / f".{name}.reserved"


def local_path(path: str, *, is_windows: bool = os.name == "nt") -> str:
    """Return the local path for the path of a `file://` location, which on Windows looks like `/C:/in.json`."""
    plain = unquote(path)
    return plain[1:] if is_windows and re.match(r"/[A-Za-z]:/", plain) else plain


class S3Store:
    """A prefix of a bucket for responses; inputs may be anywhere that the credentials can read."""

    def __init__(self, place: str) -> None:
        try:
            self._place = S3Place.parse(place)
        except ConfigurationError as error:
            raise ConfigurationError(f"async store: {error}") from None
        with explained(About(doing=f"async store {place}", bucket=self._place.bucket), ConfigurationError):
            self._client = Clients()["s3"]

    def read(self, location: str, max_bytes: int) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError

        match = _S3.fullmatch(location)
        if match is None:
            raise BodyError(f"the input {location[:200]!r} is not a valid S3 location; use s3://bucket/key")
        try:
            found = self._client.get_object(Bucket=match[1], Key=match[2])
        except (
            BotoCoreError,
            ClientError,
            OSError,
            ValueError,
        ) as error:  # OSError and ValueError come from credential providers
            raise BodyError(f"the input {location[:200]!r} cannot be read ({type(error).__name__})") from error
        if found["ContentLength"] > max_bytes:
            raise BodyTooLargeError(max_bytes, MAX_BYTES_VARIABLE)
        content: bytes = found["Body"].read(max_bytes)
        return content

    def locate(self, name: str) -> str:
        return f"s3://{self._place.bucket}/{self._place.join(name)}"

    def write(self, name: str, content: bytes, content_type: str) -> None:
        key = self._place.join(name)
        self._client.put_object(Bucket=self._place.bucket, Key=key, Body=content, ContentType=content_type)

    def reserve(self, name: str) -> None:
        """Do nothing, because a bucket is never full."""

    def write_reserved(self, reserved: str, name: str, content: bytes, content_type: str) -> None:  # noqa: ARG002
        self.write(name, content, content_type)

    def release(self, reserved: str) -> None:
        """Do nothing."""


AsyncStore = FolderStore | S3Store
