"""Turn a reference recording into a voice: checked, brought to the rate that the family wants, encoded alone, once.

Alone, because a padded batch gives other numbers than the single recording (about 6 % of a codec's codes flip).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from s1_mini.audio.reference import load_reference, naming, read_recording
from s1_mini.exceptions import ReferenceAudioError, TextError, VoiceUnsupportedError
from s1_mini.text.tidy import tidied
from s1_mini.types import Reference, Voice
from s1_mini.voices.arrays import is_array_file
from s1_mini.voices.format import Tensors, VoiceFormat
from s1_mini.voices.reference_cache import ReferenceCache

Check = Callable[[], None]  # raises if nobody wants the work any more
Encode = Callable[[Tensor, Check], Tensors]  # wave [samples] to the tensors of a voice


@dataclass(frozen=True)
class ReferenceEncoder:
    """Makes voices of references: `find` is quick, `encode` takes seconds."""

    encode_wave: Encode
    cache: ReferenceCache
    form: VoiceFormat
    max_s: float
    max_bytes: int
    max_text_length: int
    say: Callable[[str], str] = str  # a transcript as the model is to read it

    def find(self, reference: Reference) -> Voice | None:
        """Give the voice of a reference that was encoded before; None if it is new. Raises as `encode` does."""
        tensors = self.cache.find(self.cache.key(self._read(reference)))
        return None if tensors is None else Voice(tensors, self._text(reference))

    def encode(self, reference: Reference, check: Check = lambda: None) -> Voice:
        """Give the voice of a reference, with `encode_wave` if it is new; what `check` raises ends the work.

        A voice file of the family's own is read as it is. Raises `ReferenceAudioError` for the recording,
        `VoiceUnsupportedError` where none can be encoded, and `TextError` for its transcript, which may be empty.
        """
        text, recording = self._text(reference), self._read(reference)
        if isinstance(recording, bytes) and is_array_file(recording):
            return Voice(self._from_file(recording), text)
        if not self.form.clones:
            raise VoiceUnsupportedError(
                "reference_audio",
                "this checkpoint cannot make a voice of a recording; name one of its voices, or send a voice file "
                "(.npz, .npy)",
            )

        def encode_recording() -> Tensors:
            wave = load_reference(
                recording, sample_rate=self.form.sample_rate, max_s=self.max_s, max_bytes=self.max_bytes, check=check
            )
            return self.encode_wave(torch.from_numpy(wave), check)

        with naming(reference.audio):
            return Voice(self.cache.get(self.cache.key(recording), encode_recording), text)

    def _from_file(self, data: bytes) -> Tensors:
        try:
            return self.form.from_file(data)
        except ValueError as error:
            raise ReferenceAudioError("reference_audio", f"is no voice of this checkpoint: {error}") from None

    def _read(self, reference: Reference) -> bytes | np.ndarray:
        return read_recording(reference.audio, self.max_bytes)

    def _text(self, reference: Reference) -> str:
        try:
            return self.say(tidied(reference.text, self.max_text_length)) if reference.text else ""
        except TextError as error:
            raise TextError("reference_text", str(error).removeprefix(f"{error.field}: ")) from None
