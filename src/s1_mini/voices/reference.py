"""Turn a reference recording into a voice: check it, resample it to the family's rate, condition and encode it once.

Each recording is encoded alone, because padding in a batch changes the result (about 6 % of a codec's codes flip).
Importing this module and checking a recording do not load torch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from s1_mini.audio.conditioning import condition
from s1_mini.audio.reference import is_convertible, load_reference, naming, read_recording
from s1_mini.exceptions import ReferenceAudioError, TextError, VoiceUnsupportedError
from s1_mini.text.tidy import tidied
from s1_mini.types import Reference, Voice
from s1_mini.voices.arrays import is_array_file
from s1_mini.voices.conversion import find_converter
from s1_mini.voices.format import Tensors, VoiceFormat

if TYPE_CHECKING:
    from torch import Tensor

    from s1_mini.voices.reference_cache import ReferenceCache


class Check:
    """Cancels work whose result, a future, is no longer needed."""

    def __init__(self, result: Future[Any]) -> None:
        self._result = result

    def __call__(self) -> None:
        """Raise `CancelledError` if the result is no longer needed."""
        if self._result.done():
            raise CancelledError

    def cancels(self, future: Future[Any]) -> None:
        """Cancel `future` as soon as the result is no longer needed."""
        self._result.add_done_callback(lambda _: future.cancel())


Encode: TypeAlias = "Callable[[Tensor, Check], Tensors]"  # wave [samples] to the tensors of a voice


@dataclass(frozen=True)
class ReferenceReader:
    """Read and check references within limits, without encoding them."""

    form: VoiceFormat
    max_s: float
    max_bytes: int
    max_text_length: int

    def check(self, reference: Reference) -> None:
        """Raise those errors of `ReferenceEncoder.encode` that can be found without encoding."""
        self._tidied(reference)
        recording = self._read(reference)
        if self._voice_file(recording) is None:
            with naming(reference.audio):
                self._wave(recording)

    def converts(self, reference: Reference) -> bool:
        """Return whether encoding waits for the decoder process of `conversion.py`."""
        return find_converter(self.max_s) is not None and is_convertible(reference.audio)

    def _read(self, reference: Reference) -> bytes | np.ndarray:
        return read_recording(reference.audio, self.max_bytes)

    def _voice_file(self, recording: bytes | np.ndarray) -> Tensors | None:
        """Read a voice file of the family; return None for a recording that can be encoded."""
        if isinstance(recording, bytes) and is_array_file(recording):
            try:
                return self.form.from_file(recording)
            except ValueError as error:
                raise ReferenceAudioError(
                    "reference_audio", f"is not a valid voice file for this checkpoint: {error}"
                ) from None
        if not self.form.clones:
            raise VoiceUnsupportedError(
                "reference_audio",
                "this checkpoint cannot clone a voice from a recording; use one of its voices"
                + (", or send a voice file (.npz, .npy)" if self.form.from_arrays else ""),
            )
        return None

    def _wave(self, recording: bytes | np.ndarray, check: Callable[[], None] = lambda: None) -> np.ndarray:
        return load_reference(
            recording,
            sample_rate=self.form.sample_rate,
            max_s=self.max_s,
            max_bytes=self.max_bytes,
            check=check,
            convert=find_converter(self.max_s),
        )

    def _tidied(self, reference: Reference) -> str:
        try:
            text = tidied(reference.text, self.max_text_length) if reference.text else ""
        except TextError as error:
            raise TextError("reference_text", error.reason) from None
        if self.form.always_needs_transcript:
            self.form.check_transcript(text)
        return text


@dataclass(frozen=True)
class ReferenceEncoder(ReferenceReader):
    """Encode references as voices: `find` takes milliseconds, `encode` seconds."""

    encode_wave: Encode
    cache: ReferenceCache
    say: Callable[[str], str] = str  # normalizes a transcript for the model

    def key(self, reference: Reference) -> str:
        """Return the same value for the same recording. Raises the errors of `encode`."""
        return self.cache.key(self._read(reference))

    def find(self, reference: Reference, key: str = "") -> Voice | None:
        """Return the voice of a reference that was encoded before, or None. Raises the errors of `encode`.

        A `key` that is known already saves reading the recording.
        """
        text, known = self._text(reference), self.cache.find(key or self.key(reference))
        return None if known is None else replace(known, text=text)

    def encode(self, reference: Reference, check: Check | None = None) -> Voice:
        """Return the voice of a reference, from the cache or `encode_wave`, unless `check` cancels the work.

        A voice file in the family's own format is read without encoding. The transcript may be empty. Raises
        `ReferenceAudioError` for the recording, `TextError` for the transcript, `VoiceUnsupportedError` if the family
        cannot encode recordings, `CancelledError` if `check` cancels the work, and the errors of `encode_wave`.
        """
        check = check or Check(Future())
        text, recording = self._text(reference), self._read(reference)
        if (tensors := self._voice_file(recording)) is not None:
            return Voice(tensors, text)

        def encode_recording() -> Voice:
            import torch

            wave, warning = condition(self._wave(recording, check), self.form.sample_rate)
            return Voice(self.encode_wave(torch.from_numpy(wave), check), "", warning)

        with naming(reference.audio):
            return replace(self.cache.get(self.cache.key(recording), encode_recording), text=text)

    def _text(self, reference: Reference) -> str:
        text = self._tidied(reference)
        return self.say(text) if text else ""
