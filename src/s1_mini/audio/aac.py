"""Encode AAC-LC with FFmpeg's own encoder (extra `av`), in ADTS frames, which have no place for a comment.

A frame has 1,024 samples. Decoded audio begins with a silent frame, which decoders of ADTS keep, and ends with a whole
one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from s1_mini.exceptions import GenerationError

MAX_BIT_RATE = 128_000
# MPEG-4, no checksum, AAC-LC, one channel, any buffer fullness, one frame: all but the rate and the size
_HEADER, _HEADER_BYTES = 0xFFF1 << 40 | 1 << 38 | 1 << 30 | 0x7FF << 2, 7
RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)  # in ADTS, numbers 11 to 3


class AacFile(AbstractContextManager["AacFile"]):
    """Writes 16-bit mono samples to a file or a path as AAC; used like a `SoundFile`.

    Importing FFmpeg and opening the encoder take long, so both happen with the first samples, in the thread that
    encodes. Methods raise `GenerationError` if the encoder fails.
    """

    def __init__(self, file: Any, sample_rate: int) -> None:
        self._own = file.open("wb") if isinstance(file, Path) else None
        self._file, self._rate = self._own or file, sample_rate
        self._encoder: Any = None

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        with suppress(OSError):  # such as the full disk that raised the exception
            self._encoder = None  # the file will not be used
            self.close()

    def write(self, samples: np.ndarray) -> None:
        """Encode samples [int16], at least one."""
        if self._encoder is None:
            self._encoder = _open_encoder(self._rate)
            with _one_processor():
                self._encode(samples[:1])
            samples = samples[1:]
        if len(samples):
            self._encode(samples)

    def close(self) -> None:
        """Write the last frames, and free the encoder."""
        try:
            if self._encoder is not None:
                self._encode(None)
        finally:
            self._encoder = None
            if self._own is not None:
                self._own.close()

    def _encode(self, samples: np.ndarray | None) -> None:
        import av

        try:
            frame = None
            if samples is not None:
                frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[np.newaxis], "s16", "mono")
                frame.sample_rate = self._rate
            packets = self._encoder.encode(frame)
        except (av.FFmpegError, ValueError) as error:
            raise GenerationError(f"the audio cannot be encoded as AAC: {error}") from error
        for packet in packets:
            header = _HEADER | (11 - RATES.index(self._rate)) << 34 | (_HEADER_BYTES + packet.size) << 13
            self._file.write(header.to_bytes(_HEADER_BYTES, "big") + bytes(packet))


def _open_encoder(rate: int) -> Any:
    import av

    encoder: Any = av.CodecContext.create("aac", "w")
    encoder.sample_rate, encoder.layout, encoder.format, encoder.thread_count = rate, "mono", "fltp", 1
    encoder.bit_rate = min(4 * rate, MAX_BIT_RATE)
    encoder.options = {"aac_coder": "fast"}  # as good at these bit rates, in a third of the default's time
    return encoder


@contextmanager
def _one_processor() -> Iterator[None]:
    """Restrict this thread to one processor: FFmpeg would start a thread per processor, up to 16, for each encoder.

    Only Linux has restrictions of threads.
    """
    if sys.platform == "linux":
        processors = os.sched_getaffinity(0)
        with suppress(OSError):  # a container may forbid it
            os.sched_setaffinity(0, {min(processors)})
        try:
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, processors)
    else:
        yield
