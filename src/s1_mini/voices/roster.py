"""All named voices of an engine: the checkpoint's, which stay as they are, and those added at run time.

Where both have a name, the checkpoint's is meant. Safe to use from several threads; what is deleted or replaced does no
harm to who speaks with it, since a voice once given is never changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from s1_mini.exceptions import VoiceExistsError, VoiceFileError, VoiceNotFoundError, VoiceReadOnlyError
from s1_mini.types import Voice, VoiceInfo
from s1_mini.voices.added import AddedVoices, exists
from s1_mini.voices.library import NamedVoice, VoiceLibrary, VoiceSummary, check_name, is_name, not_found

logger = logging.getLogger(__name__)


class Roster:
    """Voices by name."""

    def __init__(self, library: VoiceLibrary, added: AddedVoices) -> None:
        self.library, self.added = library, added
        self.pinned: set[str] = set()  # names that keep their place in the caches
        self._being_added: set[str] = set()
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        for name in sorted(added.names & set(library.names)):
            logger.warning("the added voice %r is never heard: the checkpoint has a voice of that name", name)

    @property
    def names(self) -> list[str]:
        """All names, sorted, as of the last look at what others may have added."""
        return sorted({*self.library.names, *self.added.names})

    @property
    def num_added(self) -> int:
        """Added voices, as of the last look, but those that are never heard."""
        return len(self.added.names - set(self.library.names))

    def find(self, name: str) -> NamedVoice:
        """Give one voice. Raises `VoiceNotFoundError`, or `VoiceFileError` if it is there but cannot be used."""
        named = self.library.describe(name) if name in self.library else self.added.get(name)
        if named is None:
            raise not_found(name, self.names)
        return named

    def info(self, name: str) -> VoiceInfo:
        """Tell of one voice. Raises as `find`."""
        if name in self.library:
            return self._info(self.library.summary(name))
        told = self.added.summary(name)
        if told is None:
            raise not_found(name, self.names)
        return self._info(told)

    def infos(self) -> list[VoiceInfo]:
        """Tell of all voices, sorted by name; files that are none are skipped with a warning, once each."""
        self.added.refresh()
        told = []
        for name in self.names:
            try:
                told.append(self.info(name))
            except VoiceNotFoundError:
                continue  # it was deleted at this moment
            except VoiceFileError as error:
                self._warn(name, str(error).removeprefix(f"{error.field}: "))
        return told

    def warn_of_faults(self) -> None:
        """Tell which of the checkpoint's voices are damaged, as far as they were read."""
        for name, fault in self.library.faults.items():
            self._warn(name, fault)

    @contextmanager
    def adding(self, name: str, *, replace: bool) -> Iterator[None]:
        """Hold a name while its voice is made, so that of two who add it one is told before any work is done.

        Raises `VoiceError` for a name that is none, `VoiceExistsError` or `VoiceReadOnlyError`.
        """
        check_name(name)
        if name in self.library:
            if replace:
                raise VoiceReadOnlyError("voice", f"{name!r} is the checkpoint's and cannot be replaced")
            raise VoiceExistsError("voice", f"{name!r} is a voice of the checkpoint; choose another name")
        with self._lock:
            if name in self._being_added:
                raise VoiceExistsError("voice", f"{name!r} is being added at this moment")
            if not replace and self._is_taken(name):
                raise exists(name)
            self._being_added.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._being_added.discard(name)

    def add(self, name: str, voice: Voice, *, description: str, replace: bool) -> VoiceInfo:
        """Keep a voice under a name that is held by `adding`. Raises as `AddedVoices.put`."""
        named = NamedVoice(name, voice, description)
        self.added.put(named, replace=replace)
        return self._info(named.summary(self.added.form))

    def delete(self, name: str) -> None:
        """Forget an added voice. Raises `VoiceNotFoundError` or `VoiceReadOnlyError`."""
        if name in self.library:
            raise VoiceReadOnlyError("voice", f"{name!r} is the checkpoint's and cannot be deleted")
        if not is_name(name) or not self.added.remove(name):
            raise not_found(name, self.names)

    def _is_taken(self, name: str) -> bool:
        try:
            return self.added.summary(name) is not None
        except VoiceFileError:
            return True  # by something that is to be replaced or deleted on purpose

    def _warn(self, name: str, fault: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("a voice is left out: %s", fault)

    def _info(self, told: VoiceSummary) -> VoiceInfo:
        is_own = told.name in self.library
        return VoiceInfo(
            name=told.name,
            description=told.description,
            is_default=is_own and told.is_default,
            source="checkpoint" if is_own else "added",
            seconds=told.seconds,
            text=told.text,
            pinned=told.name in self.pinned,
        )
