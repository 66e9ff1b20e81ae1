"""Where named voices meet the engine room: adding encodes, pinning holds places in the caches, warming reads ahead.

The engine calls it from whatever threads. What it does on the device goes through the same door as all requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from s1_mini.config import EngineConfig
from s1_mini.exceptions import CapacityError, EngineNotReadyError, ParameterError, TextError, VoiceError
from s1_mini.files import open_regular
from s1_mini.runtime.preloader import Preloader
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.text.tidy import tidied
from s1_mini.types import Reference, Voice, VoiceInfo
from s1_mini.voices.registry import Recording, VoiceDirectory, VoiceRegistry

MAX_DESCRIPTION = 500  # characters
LOOK_AGAIN_S = 0.05  # while others are busy
ALL = "all"

Check = Callable[[], None]  # raises if nobody wants the work any more
Encode = Callable[[Reference, Check], Voice]


class VoiceService:
    """The named voices of one running engine; safe to use from several threads."""

    def __init__(self, roster: VoiceRegistry, synthesizer: Synthesizer, encode: Encode, config: EngineConfig) -> None:
        self.roster = roster
        self._synthesizer, self._encode = synthesizer, encode
        self._max_text_length, self._max_bytes = config.max_text_length, config.max_reference_bytes
        self._pins = roster.pins
        self._lock = threading.Lock()  # of the pins
        self._stopped = threading.Event()
        wishes = [name.strip() for name in config.warm_voices.split(",") if name.strip()]
        self._preloader = Preloader(
            roster.added.recordings(),
            [] if wishes == [ALL] else wishes,
            wants_all=wishes == [ALL],
            take_in=self._take_in,
            read_ahead=self._read_ahead,
            all_names=lambda: self.roster.names,
            stopped=self._stopped,
        )

    def take_over(self, before: VoiceService) -> None:
        """Keep the voices in memory and the pins of another's, as far as this checkpoint can speak with them."""
        if self.roster.added.form.encoder == before.roster.added.form.encoder:
            if not isinstance(before.roster.added, VoiceDirectory):
                self.roster.added = before.roster.added
            for name in sorted(before.roster.pins):
                with suppress(VoiceError, CapacityError):
                    self.pin(name)

    def start(self) -> None:
        """Begin to take in recordings and to read voices ahead, in the background."""
        self._preloader.start()

    def stop(self) -> None:
        """Begin nothing more of that."""
        self._stopped.set()
        self._preloader.wake()

    def join(self) -> None:
        """Wait for the end of what was begun, once the engine room is closed."""
        self._preloader.join()

    def health(self) -> dict[str, Any]:
        """Tell how many voices there are, how many are still to be warmed, and what failed."""
        return {
            "count": len(self.roster.names),
            "added": self.roster.num_added,
            "warming": self._preloader.num_left,
            "failed": self.roster.library.faults | self._preloader.failed,
        }

    def add(
        self,
        name: str,
        reference: Reference,
        *,
        description: str = "",
        replace: bool = False,
        check: Check = lambda: None,
    ) -> VoiceInfo:
        """Encode a reference, alone, and keep it under `name`; what `check` raises before that ends the work.

        Raises `RequestError` or `EngineError`.
        """
        description = check_description(description)
        if not reference.text and self.roster.added.form.from_arrays is None:
            raise TextError("reference_text", "it is empty; write word for word what is said in the recording")
        with self.roster.adding(name, replace=replace):
            voice = self._encode(reference, check)
            self._synthesizer.prompt(voice)  # what fits into no slot is refused now and not with every request
            with self._lock:
                self.roster.add(name, voice, description=description, replace=replace)
                if name in self._pins:
                    self._let_go(name)
                    with suppress(CapacityError):  # added it is; whether it is pinned, its info tells
                        self._hold(name, voice)
        return self.roster.info(name)

    def delete(self, name: str) -> None:
        """Forget an added voice, its tensors and its prefix. Raises `VoiceNotFoundError` or `VoiceReadOnlyError`."""
        with self._lock:
            key = self._key(name)
            self.roster.delete(name)
            self._let_go(name)
            if key is not None and all(key != held for held, _ in self._pins.values()):
                self._synthesizer.core.prefixes.remove(key)

    def pin(self, name: str) -> VoiceInfo:
        """Keep the tensors and the prefix of a voice in their caches. Raises `VoiceError` or `CapacityError`."""
        with self._lock:
            voice = self.roster.find(name).voice
            if name not in self._pins:
                self._hold(name, voice)
        self._preloader.wish(name)
        return self.roster.info(name)

    def unpin(self, name: str) -> VoiceInfo:
        """Let them go as any other. Raises `VoiceError`."""
        with self._lock:
            self.roster.find(name)
            self._let_go(name)
        return self.roster.info(name)

    def _hold(self, name: str, voice: Voice) -> None:
        prefixes, prompt = self._synthesizer.core.prefixes, self._synthesizer.prompt(voice)
        held = dict(self._pins.values()) | {prompt.prefix_key: self._synthesizer.prefix_bytes(prompt)}
        too_many = prefixes.max_entries is not None and len(held) > prefixes.max_entries
        if too_many or sum(held.values()) > prefixes.max_bytes:
            raise CapacityError(
                f"with {name!r}, {len(held)} pinned voices of {sum(held.values()) / 1e6:.1f} MB; the cache holds "
                f"{prefixes.max_entries} of {prefixes.max_bytes / 1e6:.1f} MB. Unpin others, or give it more "
                "(S1_MINI_PREFIX_CACHE_MB, S1_MINI_KV_CACHE_SIZE)."
            )
        self._pins[name] = prompt.prefix_key, self._synthesizer.prefix_bytes(prompt)
        self.roster.added.pin(name, pinned=True)
        prefixes.pin(prompt.prefix_key)

    def _let_go(self, name: str) -> None:
        if name not in self._pins:
            return
        key, _ = self._pins.pop(name)
        self.roster.added.pin(name, pinned=False)
        if all(key != held for held, _ in self._pins.values()):
            self._synthesizer.core.prefixes.unpin(key)

    def _key(self, name: str) -> str | None:
        """Give the key of a voice's prefix, None if the voice cannot be read."""
        try:
            return self._synthesizer.prompt(self.roster.find(name).voice).prefix_key
        except (VoiceError, CapacityError):
            return None

    def _take_in(self, recording: Recording) -> None:
        """Make a voice of a recording that lies in the directory of voices. Raises `S1MiniError` or `OSError`."""
        if not recording.transcript.exists():
            raise ParameterError("reference_text", f"{recording.transcript.name} is missing: what is said in it?")
        with open_regular(recording.transcript) as file:
            said = file.read(4 * self._max_text_length + 4)
        try:
            text = said.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TextError("reference_text", f"{recording.transcript.name} is not UTF-8: {error}") from None
        self.add(recording.name, Reference(recording.audio, text), replace=True, check=self._check)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise EngineNotReadyError("the engine is stopping")

    def _read_ahead(self, name: str) -> bool:
        """Read a voice's prefix into its cache, when nobody waits; tell whether there is room for more."""
        while not self._stopped.is_set():
            voice = self.roster.find(name).voice
            prompt, prefixes = self._synthesizer.prompt(voice), self._synthesizer.core.prefixes
            if prompt.prefix_key in prefixes:
                return True
            stats = prefixes.stats
            is_full = stats.num_bytes + self._synthesizer.prefix_bytes(prompt) > stats.max_bytes
            if (is_full or stats.entries == prefixes.max_entries) and name not in self._pins:
                return False
            if self._synthesizer.has_room_to_spare and self._synthesizer.read_prefix(voice, self._stopped):
                return True  # even if its prefix is too short to be kept
            self._stopped.wait(LOOK_AGAIN_S)
        return True


def check_description(description: str) -> str:
    """Give a description in order. Raises `ParameterError` if it is none."""
    if not description:
        return ""
    if isinstance(description, str) and len(description) > MAX_DESCRIPTION:
        raise ParameterError("description", f"{len(description)} characters; at most {MAX_DESCRIPTION} are allowed")
    try:
        return tidied(description, MAX_DESCRIPTION)
    except TextError as error:
        raise ParameterError("description", str(error).removeprefix(f"{error.field}: ")) from None
