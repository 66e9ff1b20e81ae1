"""Consents of speakers, as in OpenAI's API. A consent is a small file with a name and a language.

The files are below the directory of added voices, which replicas share; without that directory, they are in a temporary
one. Recordings of consents are not kept. The methods block on file access.
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from s1_mini.exceptions import CapacityError, StorageError
from s1_mini.files import files, open_regular
from s1_mini.server.errors import NotFoundError, quoted

FOLDER = "consents"  # in the directory of voices
MAX_CONSENTS = 10_000
MAX_FILE_BYTES = 4_096
SUFFIX = ".json"
_ID = re.compile(r"cons_[0-9a-f]{24}")


class Consent(BaseModel):
    """A consent; sorting by id sorts by time of creation."""

    id: str = Field(pattern=_ID.pattern)
    created_at: int  # Unix time in seconds
    language: str = Field(max_length=35)
    name: str = Field(max_length=200)


class Consents:
    """All consents of a server. Safe to use from several threads and processes."""

    def __init__(self, voices_path: Path | None) -> None:
        self._folder = None if voices_path is None else voices_path / FOLDER
        self._lock = threading.Lock()  # for the creation of the temporary folder

    def add(self, name: str, language: str) -> Consent:
        """Store a consent. Raises `CapacityError` or `StorageError`."""
        if len(self._names()) >= MAX_CONSENTS:
            raise CapacityError(f"the limit of {MAX_CONSENTS} consents is reached; delete some")
        now = time.time()
        identity = f"cons_{int(now * 1000):012x}{secrets.token_hex(6)}"
        return self._write(Consent(id=identity, created_at=int(now), language=language, name=name))

    def get(self, identity: str) -> Consent:
        """Return a consent. Raises `NotFoundError` or `StorageError`."""
        try:
            with open_regular(self._path(identity)) as file:
                return Consent.model_validate_json(file.read(MAX_FILE_BYTES))
        except (OSError, ValidationError):
            raise _not_found(identity) from None

    def rename(self, identity: str, name: str) -> Consent:
        """Rename a consent. Raises `NotFoundError` or `StorageError`."""
        return self._write(self.get(identity).model_copy(update={"name": name}))

    def delete(self, identity: str) -> None:
        """Delete a consent. Raises `NotFoundError` or `StorageError`."""
        try:
            files.remove(self._path(identity))
        except FileNotFoundError:
            raise _not_found(identity) from None
        except OSError as error:
            raise StorageError(f"the consent cannot be deleted: {error.strerror}") from None

    def page(self, after: str | None, limit: int) -> tuple[list[Consent], bool]:
        """Return up to `limit` consents after the one with the id `after`, oldest first, and whether more follow.

        Raises `StorageError`.
        """
        found: list[Consent] = []
        for identity in (name for name in self._names() if after is None or name > after):
            if len(found) == limit:
                return found, True
            try:
                found.append(self.get(identity))
            except NotFoundError:
                continue  # deleted meanwhile, or damaged
        return found, False

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self._open().glob(f"cons_*{SUFFIX}"))

    def _write(self, consent: Consent) -> Consent:
        try:
            files.publish(self._path(consent.id), consent.model_dump_json().encode())
        except OSError as error:
            raise StorageError(f"the consent cannot be written: {error.strerror}") from None
        return consent

    def _path(self, identity: str) -> Path:
        if not _ID.fullmatch(identity):  # an invalid id never becomes part of a path
            raise _not_found(identity)
        return self._open() / f"{identity}{SUFFIX}"

    def _open(self) -> Path:
        """Return the folder; create it if necessary. Raises `StorageError`."""
        try:
            with self._lock:
                if self._folder is None:
                    self._folder = Path(tempfile.mkdtemp(prefix="s1-mini-consents-"))
                    weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the folder of consents cannot be created: {error.strerror}") from None
        return self._folder


def _not_found(identity: str) -> NotFoundError:
    return NotFoundError(f"unknown consent {quoted(identity)}; GET /v1/audio/voice_consents lists all")
