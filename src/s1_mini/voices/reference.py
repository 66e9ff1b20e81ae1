"""Turn a reference recording into a voice: checked, brought to the codec's rate, encoded alone, once.

Alone, because codes of a padded batch differ from those of the single recording (about 6 % of them flip).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from s1_mini.audio.reference import load_reference, read_recording
from s1_mini.exceptions import TextError
from s1_mini.text.normalize import normalize
from s1_mini.types import Reference, Voice
from s1_mini.voices.reference_cache import ReferenceCache


def encode_reference(
    reference: Reference,
    *,
    encode: Callable[[Tensor], Tensor],
    cache: ReferenceCache,
    sample_rate: int,
    max_s: float,
    max_bytes: int,
    max_text_length: int,
) -> Voice:
    """Give the voice of `reference`, with `encode` (wave [samples] to codes [codebooks, frames]) if it is new.

    Raises `ReferenceAudioError` for the recording and `TextError` for its transcript, which may be empty.
    """
    try:
        text = normalize(reference.text, max_text_length) if reference.text else ""
    except TextError as error:
        raise TextError("reference_text", str(error).removeprefix(f"{error.field}: ")) from None
    recording = read_recording(reference.audio, max_bytes)

    def encode_recording() -> Tensor:
        wave = load_reference(recording, sample_rate=sample_rate, max_s=max_s, max_bytes=max_bytes)
        return encode(torch.from_numpy(wave))

    return Voice(cache.get(cache.key(recording), encode_recording), text)
