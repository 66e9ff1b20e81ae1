"""Voice formats for tests without a checkpoint: codes as in S1, at ten frames a second."""

from __future__ import annotations

from s1_mini.voices.format import TensorFormat, VoiceFormat

BOOKS = 3  # of the checkpoint that generates noise


def voice_format(encoder: str = "codec", *, books: int = BOOKS) -> VoiceFormat:
    """Return the voice format of an encoder with this fingerprint."""
    codes = TensorFormat((books, None), is_integer=True)
    return VoiceFormat({"codes": codes}, encoder, sample_rate=44_100, seconds=lambda shapes: shapes["codes"][1] / 10)
