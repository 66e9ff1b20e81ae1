"""The small interface behind which every codec stands.

Shapes: B rows, K codebooks, F frames; waves are float, one channel, in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from torch import Tensor


class CodecStream(Protocol):
    """Decodes B rows piece by piece; any cutting gives the samples of one call."""

    def push(self, codes: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Decode the next frames [n, K, F] of `rows`, or of all, to samples [n, F * samples_per_frame]."""

    def reset(self, row: int) -> None:
        """Begin a new utterance in one row."""


class Codec(Protocol):
    """Frames of codes to sound, and sound to frames."""

    sample_rate: int
    samples_per_frame: int
    num_codebooks: int
    max_frames: int  # longest stream, in frames

    def encode(self, wave: Tensor) -> Tensor:
        """Encode one wave [samples] to codes [K, F]; the last frame is filled up with silence."""

    def encode_by_blocks(self, wave: Tensor) -> Generator[None, None, Tensor]:
        """Do the same with a `yield` after each bounded piece of work; the codes come at the end."""

    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes [B, K, F] to samples [B, F * samples_per_frame]."""

    def open(self, rows: int) -> CodecStream:
        """Begin a stream of `rows` rows."""
