"""The named voices of a running engine: add, delete and pin voices, and prefill them early in a background thread."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from contextlib import suppress
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
from s1_mini.types import Reference, Voice, VoiceInfo
from s1_mini.voices.reference import Check, ReferenceEncoder
from s1_mini.voices.registry import Recording, VoiceDirectory, VoiceRegistry

logger = logging.getLogger(__name__)

MAX_DESCRIPTION = 500  # characters
BUSY_POLL_S = 0.05  # poll interval for free slots while the engine is busy
JOIN_S = 10.0  # maximum wait for the thread, which may still decode a recording; it is a daemon thread
ALL = "all"


class VoiceService:
    """The named voices of one running engine. Thread-safe."""

    def __init__(
        self, registry: VoiceRegistry, synthesizer: Synthesizer, encoder: ReferenceEncoder, config: EngineConfig
    ) -> None:
        self.registry = registry
        self._synthesizer, self._encoder = synthesizer, encoder
        self._pins = registry.pins
        self._lock = threading.Lock()  # guards the pins
        self.preloader = Preloader(self, synthesizer, config)

    def take_over(self, before: VoiceService) -> None:
        """Take over the in-memory voices and the pins of another service, as far as they fit this checkpoint."""
        added = before.registry.added
        if self.registry.added.form.encoder == added.form.encoder:
            if not isinstance(added, VoiceDirectory):
                self.registry.added = added
            for name in sorted(before.registry.pins):
                with suppress(VoiceError, CapacityError):
                    self.pin(name)

    def health(self) -> dict[str, Any]:
        return {
            "count": len(self.registry.names),
            "added": self.registry.num_added,
            "warming": self.preloader.num_left,
            "failed": self.registry.library.faults | self.preloader.failed,
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
                self.registry.add(name, voice, description=description, replace=replace)
                if name in self._pins:
                    self._release(name)
                    with suppress(CapacityError):  # the voice is stored anyway; its info says that it is not pinned
                        self._hold(name, voice)
        return dataclasses.replace(self.registry.info(name), warning=encoded.warning or None)

    def delete(self, name: str) -> None:
        """Delete an added voice and its cached prefix. Raises the errors of `VoiceRegistry.delete`."""
        name = self.registry.spelling(name)
        with self._lock:
            try:
                key = self._synthesizer.prompt(self.registry.find(name).voice).prefix_key
            except (VoiceError, CapacityError):
                key = ""
            self.registry.delete(name)
            self._release(name)
            if key and all(key != held for held, _ in self._pins.values()):
                self._synthesizer.core.prefixes.remove(key)

    def pin(self, name: str) -> VoiceInfo:
        """Keep the tensors and the prefix of a voice in their caches. Raises `VoiceError` or `CapacityError`."""
        name = self.registry.spelling(name)
        with self._lock:
            voice = self.registry.find(name).voice
            if name not in self._pins:
                self._hold(name, voice)
        self.preloader.prefill_next(name)
        return self.registry.info(name)

    def unpin(self, name: str) -> VoiceInfo:
        name = self.registry.spelling(name)
        with self._lock:
            self.registry.find(name)
            self._release(name)
        return self.registry.info(name)

    def _hold(self, name: str, voice: Voice) -> None:
        prefixes, prompt = self._synthesizer.core.prefixes, self._synthesizer.prompt(voice)
        num_bytes = self._synthesizer.prefix_bytes(prompt)
        held = dict(self._pins.values()) | {prompt.prefix_key: num_bytes}
        too_many = prefixes.max_entries is not None and len(held) > prefixes.max_entries
        if too_many or sum(held.values()) > prefixes.max_bytes:
            raise CapacityError(
                f"with {name!r}, {len(held)} voices of {sum(held.values()) / 1e6:.1f} MB in total would be pinned; the "
                f"cache has room for {prefixes.max_entries} voices and {prefixes.max_bytes / 1e6:.1f} MB. "
                "Unpin others, or enlarge the cache (S1_MINI_PREFIX_CACHE_MB, S1_MINI_KV_CACHE_SIZE)."
            )
        self._pins[name] = prompt.prefix_key, num_bytes
        self.registry.added.pin(name, pinned=True)
        prefixes.pin(prompt.prefix_key)

    def _release(self, name: str) -> None:
        if name not in self._pins:
            return
        key, _ = self._pins.pop(name)
        self.registry.added.pin(name, pinned=False)
        if all(key != held for held, _ in self._pins.values()):
            self._synthesizer.core.prefixes.unpin(key)


class Preloader:
    """A thread that encodes recordings in the voice directory, then prefills voices before requests need them.

    If a voice fails, the error is logged and added to `failed`, and the thread continues with the next voice.
    """

    def __init__(self, voices: VoiceService, synthesizer: Synthesizer, config: EngineConfig) -> None:
        self.failed: dict[str, str] = {}
        self._voices, self._synthesizer, self._registry = voices, synthesizer, voices.registry
        self._max_transcript_bytes = 4 * config.max_text_length + 4
        names = [name.strip() for name in config.warm_voices.split(",") if name.strip()]
        self._recordings = deque(self._registry.added.recordings())
        self._wants_all = names == [ALL]  # whether to prefill every voice that exists once the recordings are encoded
        self._names: deque[str] = deque(() if self._wants_all else names)
        self._first: deque[str] = deque()  # pinned voices, which are prefilled first, even if the cache is full
        self._is_busy = False
        self._changed = threading.Condition()
        self._is_stopped = False
        self._encoding: Future[None] = Future()  # cancelling it ends the recording in progress
        self._thread = threading.Thread(target=self._run, name="s1_mini voices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no more work, and cancel the work in progress."""
        with self._changed:
            self._is_stopped = True
            self._encoding.cancel()
            self._changed.notify()
        self._synthesizer.cancel_prefix()

    def join(self) -> None:
        self._thread.join(JOIN_S)

    def prefill_next(self, name: str) -> None:
        with self._changed:
            self._first.append(name)
            self._changed.notify()

    @property
    def num_left(self) -> int:
        with self._changed:
            voices = len(self._registry.names) if self._wants_all else 0
            return len(self._recordings) + len(self._first) + len(self._names) + voices + self._is_busy

    def _run(self) -> None:
        while (task := self._next()) is not None:
            name = task if isinstance(task, str) else task.name
            try:
                if isinstance(task, Recording):
                    self._take_in(task)
                else:
                    self._prefill(task)
                self.failed.pop(name, None)
            except (EngineNotReadyError, CancelledError):
                return
            except Exception as error:  # models raise errors of any class; the next voice is still loaded
                reason = str(error)
                if not isinstance(error, S1MiniError | OSError):
                    logger.exception("preloading a voice failed")
                    reason = f"{type(error).__name__}: {error}"
                logger.warning("could not preload the voice %r: %s", name, reason)
                self.failed[name] = reason

    def _next(self) -> Recording | str | None:
        with self._changed:
            self._is_busy = False
            while not self._is_stopped:
                if self._wants_all and not self._recordings:
                    self._wants_all = False
                    self._names.extend(self._registry.names)
                waiting: deque[Any] = self._first or self._recordings or self._names
                if waiting:
                    self._is_busy, self._encoding = True, Future()
                    task: Recording | str = waiting.popleft()
                    return task
                self._changed.wait()
            return None

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

    def _prefill(self, name: str) -> None:
        """Prefill a voice into the cache when slots are free. If the cache is full, give up all waiting voices."""
        prefixes = self._synthesizer.core.prefixes
        while not self._is_stopped:
            voice = self._registry.find(name).voice
            prompt = self._synthesizer.prompt(voice)
            if prompt.prefix_key in prefixes:
                return
            stats = prefixes.stats
            is_full = stats.num_bytes + self._synthesizer.prefix_bytes(prompt) > stats.max_bytes
            if (is_full or stats.entries == prefixes.max_entries) and name not in self._registry.pins:
                with self._changed:
                    num_left = len(self._names)
                    self._names.clear()
                logger.info("the prefix cache is full; %r and %d more voices are not preloaded", name, num_left)
                return
            if self._synthesizer.has_room_to_spare and self._synthesizer.read_prefix(voice):
                return  # prefilled; a prefix that is too short is not cached
            with self._changed:
                self._changed.wait(BUSY_POLL_S)


def check_description(description: str) -> str:
    if not description:
        return ""
    if isinstance(description, str) and len(description) > MAX_DESCRIPTION:
        raise ParameterError("description", f"has {len(description)} characters; the limit is {MAX_DESCRIPTION}")
    try:
        return tidied(description, MAX_DESCRIPTION)
    except TextError as error:
        raise ParameterError("description", error.reason) from None
