"""What voices are made of in tests that open no checkpoint: codes, as S1's are, at ten frames a second."""

from __future__ import annotations

from s1_mini.voices.format import TensorFormat, VoiceFormat

BOOKS = 3  # of the checkpoint that speaks noise


def voice_format(encoder: str = "codec", *, books: int = BOOKS) -> VoiceFormat:
    """The format of voices that an encoder of this fingerprint made."""
    codes = TensorFormat((books, None), is_integer=True)
    return VoiceFormat({"codes": codes}, encoder, sample_rate=44_100, seconds=lambda shapes: shapes["codes"][1] / 10)
