"""The named voices of a running engine: add and delete voices, and encode new recordings in their directory."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

from s1_mini.config import EngineConfig
from s1_mini.exceptions import (
    CapacityError,
    EngineNotReadyError,
    ParameterError,
    S1MiniError,
    TextError,
    VoiceError,
)
from s1_mini.files import open_regular
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.text.tidy import tidied
from s1_mini.types import Reference, VoiceInfo
from s1_mini.voices.reference import Check, ReferenceEncoder
from s1_mini.voices.registry import Recording, VoiceDirectory, VoiceRegistry

logger = logging.getLogger(__name__)

MAX_DESCRIPTION = 500  # characters
JOIN_S = 10.0  # maximum wait for the thread, which may still decode a recording; it is a daemon thread


class VoiceService:
    """The named voices of one running engine. Thread-safe."""

    def __init__(
        self, registry: VoiceRegistry, synthesizer: Synthesizer, encoder: ReferenceEncoder, config: EngineConfig
    ) -> None:
        self.registry = registry
        self._synthesizer, self._encoder = synthesizer, encoder
        self._lock = threading.Lock()  # a voice is added or deleted
        self.importer = Importer(self, config)

    def take_over(self, before: VoiceService) -> None:
        """Take over the in-memory voices of another service, if they fit this checkpoint."""
        added = before.registry.added
        if self.registry.added.form.encoder == added.form.encoder and not isinstance(added, VoiceDirectory):
            self.registry.added = added

    def health(self) -> dict[str, Any]:
        return {
            "count": len(self.registry.names),
            "added": self.registry.num_added,
            "warming": self.importer.num_left,
            "failed": self.registry.library.faults | self.importer.failed,
        }

    def add(
        self,
        name: str,
        reference: Reference,
        *,
        description: str = "",
        replace: bool = False,
        check: Check | None = None,
    ) -> VoiceInfo:
        """Encode a reference and store the voice under `name`. Cancelling `check` ends this.

        Raises `RequestError`, `EngineError`, `CheckpointError` if the encoder cannot be loaded, and `CancelledError`.
        """
        description = check_description(description)
        self.registry.added.form.check_transcript(reference.text)
        with self.registry.adding(name, replace=replace):
            encoded = self._encoder.encode(reference, check)
            voice = dataclasses.replace(encoded, warning="")  # the warning is for the caller, not for the voice's users
            self._synthesizer.prompt(voice)  # raises for a voice that does not fit a slot, before it is stored
            with self._lock:
                info = self.registry.add(name, voice, description=description, replace=replace)
        return dataclasses.replace(info, warning=encoded.warning or None)

    def delete(self, name: str) -> None:
        """Delete an added voice and its cached prefix. Raises the errors of `VoiceRegistry.delete`."""
        name = self.registry.spelling(name)
        with self._lock:
            try:
                key = self._synthesizer.prompt(self.registry.find(name).voice).prefix_key
            except (VoiceError, CapacityError):
                key = ""
            self.registry.delete(name)
            if key:
                self._synthesizer.core.prefixes.remove(key)


class Importer:
    """A thread that encodes the recordings in the voice directory.

    If a recording fails, the error is logged and added to `failed`, and the thread continues with the next one.
    """

    def __init__(self, voices: VoiceService, config: EngineConfig) -> None:
        self.failed: dict[str, str] = {}
        self._voices, self._registry = voices, voices.registry
        self._max_transcript_bytes = 4 * config.max_text_length + 4
        self._recordings = deque(self._registry.added.recordings())
        self._is_busy = self._is_stopped = False
        self._lock = threading.Lock()
        self._encoding: Future[None] = Future()  # cancelling it ends the recording in progress
        self._thread = threading.Thread(target=self._run, name="s1_mini voices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no more work, and cancel the work in progress."""
        with self._lock:
            self._is_stopped = True
            self._encoding.cancel()

    def join(self) -> None:
        self._thread.join(JOIN_S)

    @property
    def num_left(self) -> int:
        with self._lock:
            return len(self._recordings) + self._is_busy

    def _run(self) -> None:
        while (recording := self._next()) is not None:
            try:
                self._take_in(recording)
            except (EngineNotReadyError, CancelledError):
                return
            except Exception as error:  # models raise errors of any class; the next recording is still encoded
                reason = str(error)
                if not isinstance(error, S1MiniError | OSError):
                    logger.exception("encoding a recording failed")
                    reason = f"{type(error).__name__}: {error}"
                logger.warning("could not load the voice %r: %s", recording.name, reason)
                self.failed[recording.name] = reason

    def _next(self) -> Recording | None:
        with self._lock:
            self._is_busy = bool(self._recordings) and not self._is_stopped
            if not self._is_busy:
                return None
            self._encoding = Future()
            return self._recordings.popleft()

    def _take_in(self, recording: Recording) -> None:
        """Add a recording in the voice directory as a voice. Raises `S1MiniError` or `OSError`."""
        reference = Reference(recording.audio, self._transcript(recording.transcript))
        info = self._voices.add(recording.name, reference, replace=True, check=Check(self._encoding))
        if info.warning:
            logger.warning("the recording of the voice %r: %s", recording.name, info.warning)

    def _transcript(self, path: Path) -> str:
        """Read the transcript of a recording, which may be missing if the model needs none."""
        if not path.exists():
            if self._registry.added.form.needs_transcript:
                reason = f"{path.name} is missing; create it with the exact words of the recording"
                raise ParameterError("reference_text", reason)
            return ""
        with open_regular(path) as file:
            content = file.read(self._max_transcript_bytes)
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TextError("reference_text", f"{path.name} is not valid UTF-8: {error}") from None


def check_description(description: str) -> str:
    if not description:
        return ""
    if isinstance(description, str) and len(description) > MAX_DESCRIPTION:
        raise ParameterError("description", f"has {len(description)} characters; the limit is {MAX_DESCRIPTION}")
    try:
        return tidied(description, MAX_DESCRIPTION)
    except TextError as error:
        raise ParameterError("description", error.reason) from None
