"""Voices that were added at run time: in a directory, for the next start and for other processes, or in memory.

A directory is listed at the start and no file of it opened; a voice's file is opened when the voice is asked for, and
again only when it has changed. A file that is no voice costs a warning where voices are listed, and an error to those
who ask for it by name.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from s1_mini.byte_cache import ByteCache
from s1_mini.exceptions import (
    CapacityError,
    CheckpointFileError,
    ConfigurationError,
    EngineError,
    VoiceExistsError,
    VoiceFileError,
)
from s1_mini.files import files
from s1_mini.voices.format import VoiceFormat, num_bytes
from s1_mini.voices.library import SUFFIX, NamedVoice, VoiceSummary, is_name, read_summary, read_voice
from s1_mini.voices.library import write_voice as write_voice_file

logger = logging.getLogger(__name__)

OPENED_BYTES = 64_000_000  # of tensors: some thousand voices
SUMMARY_BYTES = 32_000_000
MAX_IN_MEMORY = 10_000
MAX_IN_DIRECTORY = 100_000
RECORDINGS = {".wav", ".flac", ".mp3", ".ogg"}
TRANSCRIPT = ".txt"

Told = TypeVar("Told", VoiceSummary, NamedVoice)
Signature = tuple[int, int, int]  # of a file: another inode, time or size is another voice


@dataclass(frozen=True)
class Recording:
    """A recording that lies in the directory and is to become a voice."""

    name: str
    audio: Path
    transcript: Path


def unread_recordings(folder: Path) -> list[Recording]:
    """Give the recordings in a directory that are newer than the voices made from them, sorted by name."""
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
        except OSError:  # a broken link: reading it reports what is wrong
            is_new = True
        if is_new:
            found.append(recording)
    return found


class AddedVoices(Protocol):
    """What a roster needs of the place where added voices are."""

    form: VoiceFormat  # what they are made of, and what encoded them

    @property
    def names(self) -> set[str]:
        """All names, as of the last look."""

    def refresh(self) -> None:
        """Look for what others have added or taken away."""

    def get(self, name: str) -> NamedVoice | None:
        """Give a voice, None if there is none. Raises `VoiceFileError`."""

    def summary(self, name: str) -> VoiceSummary | None:
        """Tell of a voice, None if there is none. Raises `VoiceFileError`."""

    def put(self, named: NamedVoice, *, replace: bool) -> None:
        """Keep a voice. Raises `VoiceExistsError`, `CapacityError` or, if it cannot be written, `EngineError`."""

    def remove(self, name: str) -> bool:
        """Let go of a voice for good; tell whether it was there. Raises `EngineError` if it cannot be removed."""

    def pin(self, name: str, *, pinned: bool) -> None:
        """Keep a voice in memory, or keep it there no longer."""

    def recordings(self) -> list[Recording]:
        """Recordings that are newer than the voices made from them, sorted by name."""


class MemoryVoices:
    """Added voices that are gone with the engine."""

    def __init__(self, form: VoiceFormat) -> None:
        self.form = form
        self._voices: dict[str, NamedVoice] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> set[str]:
        """All names."""
        with self._lock:
            return set(self._voices)

    def refresh(self) -> None:
        """Nobody else adds any."""

    def get(self, name: str) -> NamedVoice | None:
        """Give a voice, None if there is none."""
        return self._voices.get(name) if is_name(name) else None

    def summary(self, name: str) -> VoiceSummary | None:
        """Tell of a voice, None if there is none."""
        named = self.get(name)
        return None if named is None else named.summary(self.form)

    def put(self, named: NamedVoice, *, replace: bool) -> None:
        """Keep a voice. Raises `VoiceExistsError` or `CapacityError`."""
        with self._lock:
            if named.name in self._voices and not replace:
                raise exists(named.name)
            check_room(len(self._voices | {named.name: named}), MAX_IN_MEMORY)
            self._voices[named.name] = named

    def remove(self, name: str) -> bool:
        """Let go of a voice; tell whether it was there."""
        with self._lock:
            return self._voices.pop(name, None) is not None

    def pin(self, name: str, *, pinned: bool) -> None:
        """All are in memory anyway."""

    def recordings(self) -> list[Recording]:
        """Memory holds none."""
        return []


class VoiceDirectory:
    """Added voices in a directory, which several processes may share; all encoded by the same."""

    def __init__(self, folder: Path, form: VoiceFormat) -> None:
        self._folder, self.form = folder, form
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._opened: ByteCache[tuple[Signature, NamedVoice]] = ByteCache(OPENED_BYTES)
        self._summaries: ByteCache[tuple[Signature, VoiceSummary]] = ByteCache(SUMMARY_BYTES)
        self._warned: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._names = self._look()
        except OSError as error:
            raise ConfigurationError(f"voices_path={str(folder)!r} cannot be used: {error.strerror}") from None

    @property
    def names(self) -> set[str]:
        """All names, as of the last look."""
        with self._lock:
            return set(self._names)

    def refresh(self) -> None:
        """Look for what others have added or taken away. Raises `EngineError`."""
        try:
            names = self._look()
        except OSError as error:
            raise EngineError(f"the directory of voices cannot be read: {error.strerror}") from None
        with self._lock:
            self._names = names

    def get(self, name: str) -> NamedVoice | None:
        """Give a voice, None if there is none. Raises `VoiceFileError`."""
        return self._open(name, self._opened, read_voice, lambda named: num_bytes(named.voice.tensors))

    def summary(self, name: str) -> VoiceSummary | None:
        """Tell of a voice, None if there is none. Raises `VoiceFileError`."""
        return self._open(name, self._summaries, read_summary, lambda told: 200 + len(told.text + told.description))

    def put(self, named: NamedVoice, *, replace: bool) -> None:
        """Keep a voice. Raises `VoiceExistsError`, `CapacityError` or, if it cannot be written, `EngineError`."""
        check_room(len(self.names | {named.name}), MAX_IN_DIRECTORY)
        try:
            write_voice_file(
                self._folder,
                named.name,
                named.voice,
                description=named.description,
                encoder=self.form.encoder,
                replace=replace,
            )
        except FileExistsError:
            raise exists(named.name) from None
        except OSError as error:
            raise EngineError(f"the voice {named.name!r} cannot be written: {error.strerror}") from None
        self._note(named.name, is_there=True)

    def remove(self, name: str) -> bool:
        """Delete a voice and the recording it came from, which else would come back; tell whether there was one."""
        was_there = False
        for suffix in (SUFFIX, TRANSCRIPT, *RECORDINGS):
            try:
                files.remove(self._path(name, suffix))
                was_there = was_there or suffix != TRANSCRIPT
            except FileNotFoundError:
                continue
            except OSError as error:
                raise EngineError(f"the voice {name!r} cannot be deleted: {error.strerror}") from None
        self._note(name, is_there=False)
        return was_there

    def pin(self, name: str, *, pinned: bool) -> None:
        """Keep a voice in memory, or keep it there no longer."""
        (self._opened.pin if pinned else self._opened.unpin)(name)

    def recordings(self) -> list[Recording]:
        """Recordings that are newer than the voices made from them, sorted by name."""
        return unread_recordings(self._folder)

    def _look(self) -> set[str]:
        found = [entry.name for entry in os.scandir(self._folder) if entry.name.endswith(SUFFIX)]
        names = {file.removesuffix(SUFFIX) for file in found if not file.startswith(".")}
        foreign = {name for name in names if not is_name(name)}
        for name in sorted(foreign - self._warned):
            logger.warning("%s in the directory of voices is skipped: no voice can have that name", name + SUFFIX)
        self._warned |= foreign
        return names - foreign

    def _open(
        self,
        name: str,
        cache: ByteCache[tuple[Signature, Told]],
        read: Callable[[Path, VoiceFormat], Told],
        size: Callable[[Told], int],
    ) -> Told | None:
        if not is_name(name):  # no path is ever built from it
            return None
        path = self._path(name, SUFFIX)
        try:
            state = path.stat()
        except OSError:
            self._note(name, is_there=False)
            return None
        signature = (state.st_ino, state.st_mtime_ns, state.st_size)
        known = cache.get(name)
        if known is not None and known[0] == signature:
            return known[1]
        try:
            told = read(path, self.form)
        except CheckpointFileError as error:
            reason = str(error).removeprefix(f"{path} ")
            raise VoiceFileError(
                "voice", f"{name!r} cannot be used: {path.name} {reason}; add its recording again, or delete it"
            ) from None
        if told.encoder != self.form.encoder:
            whose = f"the codec {told.encoder}" if told.encoder else "an unknown codec"
            raise VoiceFileError(
                "voice",
                f"{name!r} was encoded by {whose}, this checkpoint's is {self.form.encoder}; add its recording again",
            )
        cache.put(name, (signature, told), size(told))
        self._note(name, is_there=True)
        return told

    def _note(self, name: str, *, is_there: bool) -> None:
        with self._lock:
            if is_there:
                self._names.add(name)
            else:
                self._names.discard(name)
        if not is_there:
            self._opened.remove(name)
            self._summaries.remove(name)

    def _path(self, name: str, suffix: str) -> Path:
        assert is_name(name), "a path is built from names only"
        return self._folder / f"{name}{suffix}"


def exists(name: str) -> VoiceExistsError:
    """Make the error for a name that is taken."""
    return VoiceExistsError("voice", f"{name!r} is there already; choose another name, or set replace")


def check_room(count: int, allowed: int) -> None:
    """Raise `CapacityError` if `count` voices are too many."""
    if count > allowed:
        raise CapacityError(f"{allowed} added voices are as many as there may be; delete some")
