"""Sound into a file's bytes while it is made: the formats of `container`, piece by piece; flac only at the end.

A flac that does not state its length is not read by many (libsndfile too). What was handed out is never changed: where
a format would go back to write a length into its header, it stays unknown, as in every stream. Whoever streams an
answer calls it.
"""

from __future__ import annotations

import numpy as np
import soundfile
import soxr

from s1_mini.audio.container import ENCODINGS, rate_in, wav_header
from s1_mini.audio.pcm import to_int16
from s1_mini.types import AudioFormat


def encodes_fast(audio_format: AudioFormat) -> bool:
    """Whether a chunk of this format takes next to no time, so that an event loop may do it."""
    return audio_format in ("pcm", "wav")


class StreamEncoder:
    """Encodes float waves [samples] in [-1, 1] at `sample_rate` in Hz, one after the other, to one file."""

    def __init__(self, audio_format: AudioFormat, sample_rate: int) -> None:
        self.audio_format = audio_format
        self._file = _OneWayFile()
        self._sound: soundfile.SoundFile | None = None
        self._is_whole = audio_format == "flac"
        self._resampler: soxr.ResampleStream | None = None
        if audio_format == "wav":
            self._file.write(wav_header(sample_rate))
        elif audio_format != "pcm":
            rate = rate_in(audio_format, sample_rate)
            if rate != sample_rate:
                self._resampler = soxr.ResampleStream(sample_rate, rate, 1, dtype="float32")
            container, coding = ENCODINGS[audio_format]
            # Of an mp3 without a length in its header, players guess it by the bit rate: it must not vary (160 kbit/s).
            steady = {"bitrate_mode": "CONSTANT", "compression_level": 0.5} if audio_format == "mp3" else {}
            self._sound = soundfile.SoundFile(self._file, "w", rate, 1, coding, format=container, **steady)

    def feed(self, wave: np.ndarray) -> bytes:
        """Take a wave [samples]; give what can be sent by now, possibly nothing.

        Raises `GenerationError` if a sample is NaN or infinite.
        """
        self._write(to_int16(wave), wave, is_last=False)
        return b"" if self._is_whole else self._file.take()

    def finish(self) -> bytes:
        """Give what is left; nothing can be fed afterwards."""
        if self._sound is not None:
            if self._resampler is not None:
                self._write(np.zeros(0, "<i2"), np.zeros(0, np.float32), is_last=True)
            self._sound.close()
        return self._file.take()

    def _write(self, samples: np.ndarray, wave: np.ndarray, *, is_last: bool) -> None:
        if self._sound is None:
            self._file.write(samples.tobytes())
            return
        if self._resampler is not None:
            samples = to_int16(self._resampler.resample_chunk(wave.astype(np.float32), last=is_last))
        if len(samples):
            self._sound.write(samples)


class _OneWayFile:
    """A file that forgets what was taken from it: an encoder may go back in it, but changes nothing that has left."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._taken = 0  # bytes that have left
        self._place = 0

    def take(self) -> bytes:
        content = bytes(self._kept)
        self._taken += len(content)
        self._kept.clear()
        return content

    def write(self, content: bytes) -> int:
        data = bytes(content)
        start = self._place - self._taken
        self._place += len(data)
        if start >= 0:
            self._kept[start : start + len(data)] = data
        elif start + len(data) > 0:
            self._kept[0 : start + len(data)] = data[-start:]
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._place, 2: self._taken + len(self._kept)}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        start = max(0, self._place - self._taken)
        content = bytes(self._kept[start:] if size < 0 else self._kept[start : start + size])
        self._place += len(content)
        return content

    def flush(self) -> None:
        """Nothing is kept back."""
