"""Named voices of an engine: the checkpoint's, which are read-only, and those that were added at run time.

Added voices are kept in memory, or in a directory, where they outlast the process and other processes see them. The
directory is read at the start and when voices are listed; a voice's file is opened when the voice is used, and again
only when the file has changed or a full cache has evicted the voice. A broken file causes a warning when voices are
listed, and an error for requests that name the voice. Safe to use from several threads: a returned voice never changes,
so deleting or replacing a voice does not affect requests in progress.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from s1_mini.byte_cache import ByteCache
from s1_mini.exceptions import (
    CapacityError,
    CheckpointFileError,
    ConfigurationError,
    EngineError,
    StorageError,
    VoiceExistsError,
    VoiceFileError,
    VoiceNotFoundError,
    VoiceReadOnlyError,
)
from s1_mini.files import files
from s1_mini.text.lexicon import SUFFIX as LEXICON
from s1_mini.text.lexicon import Lexicons
from s1_mini.types import Voice, VoiceInfo
from s1_mini.voices.format import VoiceFormat, num_bytes
from s1_mini.voices.library import (
    SUFFIX,
    CheckpointVoices,
    NamedVoice,
    VoiceSummary,
    check_name,
    is_name,
    not_found,
    read_summary,
    read_voice,
    write_voice,
)

logger = logging.getLogger(__name__)

CACHE_BYTES = 96_000_000  # limit for cached tensors and summaries: a few thousand voices
MAX_IN_MEMORY = 10_000
MAX_IN_DIRECTORY = 100_000
RECORDINGS = {".wav", ".flac", ".mp3", ".ogg"}
TRANSCRIPT = ".txt"

Content = TypeVar("Content", VoiceSummary, NamedVoice)
Signature = tuple[int, int, int]  # inode, time and size of a file; if they differ, the voice has changed


@dataclass(frozen=True)
class Recording:
    """A recording in the voices directory; a voice will be made from it."""

    name: str
    audio: Path
    transcript: Path


def unread_recordings(folder: Path) -> list[Recording]:
    """Return the recordings in a directory that are newer than the voices made from them, sorted by name."""
    entries = {entry.name: entry for entry in os.scandir(folder)}
    found = []
    for file in sorted(entries):
        path = folder / file
        if path.suffix.lower() not in RECORDINGS or file.startswith("."):
            continue
        recording = Recording(path.stem, path, path.with_suffix(TRANSCRIPT))
        made = entries.get(path.stem + SUFFIX)
        sources = [entries[source.name] for source in (path, recording.transcript) if source.name in entries]
        try:
            is_new = made is None or made.stat().st_mtime_ns < max(source.stat().st_mtime_ns for source in sources)
        except OSError:  # a broken link; reading it reports the error
            is_new = True
        if is_new:
            found.append(recording)
    return found


class AddedVoices:
    """Added voices in memory, which are lost when the engine stops."""

    folder: Path | None = None

    def __init__(self, form: VoiceFormat) -> None:
        self.form = form  # tensors of the voices, and their encoder
        self.num_changes = 0  # grows whenever `names` changes
        self._voices: dict[str, NamedVoice] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> set[str]:
        """All known names: those at the last `refresh`, and changes by this process since then."""
        with self._lock:
            return set(self._voices)

    def __contains__(self, name: str) -> bool:
        return name in self._voices

    def refresh(self) -> None:
        """Detect voices that other processes have added or deleted. Raises `EngineError`."""

    def get(self, name: str) -> NamedVoice | None:
        """Return a voice, or None. Raises `VoiceFileError`."""
        return self._voices.get(name) if is_name(name) else None

    def summary(self, name: str) -> VoiceSummary | None:
        """Return a summary of a voice, or None. Raises `VoiceFileError`."""
        named = self.get(name)
        return None if named is None else named.summary(self.form)

    def put(self, named: NamedVoice, *, replace: bool) -> None:
        """Keep a voice. Raises `VoiceExistsError`, `CapacityError` or, if it cannot be written, `StorageError`."""
        with self._lock:
            if named.name in self._voices and not replace:
                raise _exists(named.name)
            _check_count(len(self._voices | {named.name: named}), MAX_IN_MEMORY)
            self._voices[named.name] = named
            self.num_changes += 1

    def remove(self, name: str) -> bool:
        """Delete a voice; return whether it was there. Raises `StorageError`."""
        with self._lock:
            self.num_changes += 1
            return self._voices.pop(name, None) is not None

    def recordings(self) -> list[Recording]:
        """Return the recordings that are newer than the voices made from them, sorted by name."""
        return []


class VoiceDirectory(AddedVoices):
    """Added voices in a directory that several processes may share; all voices are from the same encoder.

    Raises `ConfigurationError` if the directory cannot be used.
    """

    def __init__(self, folder: Path, form: VoiceFormat) -> None:
        super().__init__(form)
        self.folder: Path = folder
        self._names: set[str] = set()
        self._cache: ByteCache[tuple[Signature, VoiceSummary | NamedVoice]] = ByteCache(CACHE_BYTES)
        self._warned: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._names = self._look()
        except OSError as error:
            problem = f"cannot be used: {error.strerror}; name a folder that this user can write to"
            raise ConfigurationError(f"voices_path={str(folder)!r} {problem}") from None

    @property
    def names(self) -> set[str]:
        with self._lock:
            return set(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def refresh(self) -> None:
        try:
            names = self._look()
        except OSError as error:
            raise EngineError(f"the voices directory cannot be read: {error.strerror}") from None
        with self._lock:
            self.num_changes += names != self._names
            self._names = names

    def get(self, name: str) -> NamedVoice | None:
        return self._open(name, name, read_voice, lambda named: num_bytes(named.voice.tensors))

    def summary(self, name: str) -> VoiceSummary | None:
        return self._open(name, f"{name}.summary", read_summary, lambda one: 200 + len(one.text + one.description))

    def put(self, named: NamedVoice, *, replace: bool) -> None:
        _check_count(len(self.names | {named.name}), MAX_IN_DIRECTORY)
        try:
            write_voice(
                self.folder,
                named.name,
                named.voice,
                description=named.description,
                encoder=self.form.encoder,
                replace=replace,
            )
        except FileExistsError:
            raise _exists(named.name) from None
        except OSError as error:
            raise StorageError(f"the voice {named.name!r} cannot be written: {error.strerror}") from None
        self._note(named.name, is_there=True)

    def remove(self, name: str) -> bool:
        """Delete a voice with its recording, from which it would be made again; return whether either existed.

        Raises `StorageError`.
        """
        was_there = False
        for suffix in (SUFFIX, TRANSCRIPT, LEXICON, *RECORDINGS):
            try:
                files.remove(self._path(name, suffix))
                was_there = was_there or suffix not in (TRANSCRIPT, LEXICON)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(f"the voice {name!r} cannot be deleted: {error.strerror}") from None
        self._note(name, is_there=False)
        return was_there

    def recordings(self) -> list[Recording]:
        return unread_recordings(self.folder)

    def _look(self) -> set[str]:
        found = [entry.name for entry in os.scandir(self.folder) if entry.name.endswith(SUFFIX)]
        names = {file.removesuffix(SUFFIX) for file in found if not file.startswith(".")}
        foreign = {name for name in names if not is_name(name)}
        for name in sorted(foreign - self._warned):
            logger.warning("ignoring %s in the voices directory: it is not a valid voice name", name + SUFFIX)
        self._warned |= foreign
        return names - foreign

    def _open(
        self,
        name: str,
        key: str,
        read: Callable[[Path, VoiceFormat], Content],
        size: Callable[[Content], int],
    ) -> Content | None:
        if not is_name(name):  # an invalid name must not become part of a path
            return None
        path = self._path(name, SUFFIX)
        signature = _signature(path)
        if signature is None:
            self._note(name, is_there=False)
            return None
        known = self._cache.get(key)
        if known is not None and known[0] == signature:
            return cast(Content, known[1])
        try:
            content = read(path, self.form)
        except CheckpointFileError as error:
            if _signature(path) != signature:  # another process has just deleted or replaced the voice
                return self._open(name, key, read, size)
            reason = str(error).removeprefix(f"{path} ")
            raise VoiceFileError(
                "voice", f"{name!r} cannot be used: {path.name} {reason}; add its recording again, or delete it"
            ) from None
        if content.encoder != self.form.encoder:
            whose = f"the codec {content.encoder}" if content.encoder else "an unknown codec"
            raise VoiceFileError(
                "voice",
                f"{name!r} was encoded by {whose}, but this checkpoint has the codec {self.form.encoder}; add its "
                "recording again",
            )
        self._cache.put(key, (signature, content), size(content))
        self._note(name, is_there=True)
        return content

    def _note(self, name: str, *, is_there: bool) -> None:
        with self._lock:
            self.num_changes += is_there != (name in self._names)
            if is_there:
                self._names.add(name)
            else:
                self._names.discard(name)
        if not is_there:
            self._cache.remove(name)
            self._cache.remove(f"{name}.summary")

    def _path(self, name: str, suffix: str) -> Path:
        assert is_name(name), "the name is not valid"
        return self.folder / f"{name}{suffix}"


def _signature(path: Path) -> Signature | None:
    """Return the signature of a file; None if there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def _exists(name: str) -> VoiceExistsError:
    return VoiceExistsError("voice", f"{name!r} already exists; choose a different name, or set replace")


def _check_count(count: int, allowed: int) -> None:
    if count > allowed:
        raise CapacityError(f"the limit of {allowed} added voices is reached; delete some")


class VoiceRegistry:
    """Voices by name. Where a checkpoint's and an added voice share a name, the checkpoint's is used."""

    def __init__(self, library: CheckpointVoices, added: AddedVoices) -> None:
        self.library, self.added = library, added
        self._being_added: set[str] = set()
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        for name in sorted(added.names & set(library.names)):
            logger.warning("the added voice %r is ignored: the checkpoint has a voice of the same name", name)

    @classmethod
    def open(cls, library: CheckpointVoices, form: VoiceFormat, voices_path: Path | None) -> VoiceRegistry:
        """Open the voices of a checkpoint and of a directory. Raises `ConfigurationError`."""
        return cls(library, AddedVoices(form) if voices_path is None else VoiceDirectory(voices_path, form))

    @property
    def names(self) -> list[str]:
        return sorted({*self.library.names, *self.added.names})

    def __contains__(self, name: str) -> bool:
        return name in self.library or name in self.added

    @property
    def num_added(self) -> int:
        """Number of known added voices, except those hidden by a voice of the checkpoint."""
        return len(self.added.names - set(self.library.names))

    def spelling(self, name: str) -> str:
        """Return the name as it is stored: clients also write it with a capital letter, or with blanks around it."""
        plain = name.strip()
        return plain if plain in self.library else plain.lower()

    def find(self, name: str) -> NamedVoice:
        """Return one voice. Raises `VoiceNotFoundError`, or `VoiceFileError` if it exists but cannot be used."""
        stored = self.spelling(name)
        named = self.library.describe(stored) if stored in self.library else self.added.get(stored)
        if named is None:
            raise not_found(name, self.names)
        return named

    def chosen(self, name: str | None) -> list[Voice]:
        """Return the named voice or, without a name, the default voice if there is one. Raises the errors of `find`."""
        if name is not None:
            return [self.find(name).voice]
        default = self.library.default
        return [] if default is None else [default]

    def info(self, name: str) -> VoiceInfo:
        """Describe one voice. Raises the errors of `find`."""
        stored = self.spelling(name)
        summary = self.library.summary(stored) if stored in self.library else self.added.summary(stored)
        if summary is None:
            raise not_found(name, self.names)
        return self._info(summary)

    def infos(self) -> list[VoiceInfo]:
        """Describe all voices, sorted by name; skip broken files with one warning each. Raises `EngineError`."""
        self.added.refresh()
        infos = []
        for name in self.names:
            try:
                infos.append(self.info(name))
            except VoiceNotFoundError:
                continue  # the voice has just been deleted
            except VoiceFileError as error:
                self._warn(name, error.reason)
        return infos

    def lexicons(self, path: Path | None) -> Lexicons:
        """Open the lexicon in `path`, for all requests, and the lexicons of voices. Raises `ConfigurationError`."""
        folders = filter(None, (self.library.folder, self.added.folder))
        return Lexicons(path, folders, self.library.default_name)

    def warn_of_faults(self) -> None:
        """Log which of the checkpoint's voices are damaged, among those read so far."""
        for name, fault in self.library.faults.items():
            self._warn(name, fault)

    @contextmanager
    def adding(self, name: str, *, replace: bool) -> Iterator[None]:
        """Reserve a name while its voice is encoded; a second request for the same name fails immediately.

        Raises `VoiceError` for an invalid name, `VoiceExistsError` or `VoiceReadOnlyError`.
        """
        check_name(name)
        if name in self.library:
            if replace:
                raise VoiceReadOnlyError("voice", f"{name!r} is a voice of the checkpoint and cannot be replaced")
            raise VoiceExistsError("voice", f"{name!r} is a voice of the checkpoint; choose a different name")
        with self._lock:
            if name in self._being_added:
                raise VoiceExistsError("voice", f"{name!r} is currently being added; try again later")
            if not replace and self._is_taken(name):
                raise _exists(name)
            self._being_added.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._being_added.discard(name)

    def add(self, name: str, voice: Voice, *, description: str, replace: bool) -> VoiceInfo:
        """Keep a voice under a name that `adding` has reserved. Raises the errors of `AddedVoices.put`."""
        named = NamedVoice(name, voice, description)
        self.added.put(named, replace=replace)
        return self._info(named.summary(self.added.form))

    def delete(self, name: str) -> None:
        """Delete an added voice. Raises `VoiceNotFoundError`, `VoiceReadOnlyError` or `EngineError`."""
        stored = self.spelling(name)
        if stored in self.library:
            raise VoiceReadOnlyError("voice", f"{stored!r} is a voice of the checkpoint and cannot be deleted")
        if not is_name(stored) or not self.added.remove(stored):
            raise not_found(name, self.names)

    def _is_taken(self, name: str) -> bool:
        try:
            return self.added.summary(name) is not None
        except VoiceFileError:
            return True  # a damaged file occupies the name; it is only replaced or deleted explicitly

    def _warn(self, name: str, fault: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("skipping a voice: %s", fault)

    def _info(self, summary: VoiceSummary) -> VoiceInfo:
        is_own = summary.name in self.library
        return VoiceInfo(
            name=summary.name,
            description=summary.description,
            is_default=is_own and summary.is_default,
            source="checkpoint" if is_own else "added",
            seconds=summary.seconds,
            text=summary.text,
        )
