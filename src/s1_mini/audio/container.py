"""Encode waves as wav, flac, mp3, Ogg Opus, raw 16-bit or G.711 samples: whole, in memory or to disk, or as a stream.

All audio is mono; wav, flac and pcm have 16 bits per sample. `StreamEncoder` works piece by piece: it never changes
bytes that it has returned, so headers do not contain the length. Many programs, including libsndfile, cannot read a
flac without a length, so a flac is returned in one piece at the end.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import soundfile
import soxr

from s1_mini.exceptions import GenerationError, ParameterError
from s1_mini.files import files
from s1_mini.types import AudioFormat

FULL_SCALE = 2**15 - 1  # symmetric: 1.0 is 32767 and -1.0 is -32767

FORMATS: tuple[AudioFormat, ...] = get_args(AudioFormat)
RAW: tuple[AudioFormat, ...] = ("pcm", "mulaw", "alaw")  # without a header


class _Encoding(NamedTuple):
    media_type: str
    container: str = ""  # container and coding as libsndfile names them
    coding: str = ""
    rates: tuple[int, ...] = ()  # supported sample rates; audio of another rate is resampled to the last; empty: any


_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_OPUS = _Encoding("audio/ogg", "OGG", "OPUS", (8000, 12000, 16000, 24000, 48000))
_ENCODINGS = {
    "wav": _Encoding("audio/wav", "WAV", "PCM_16"),
    "flac": _Encoding("audio/flac", "FLAC", "PCM_16"),
    "mp3": _Encoding("audio/mpeg", "MP3", "MPEG_LAYER_III", _MP3_RATES),
    "opus": _OPUS,
    "ogg": _OPUS,
    "pcm": _Encoding("audio/pcm"),
    "mulaw": _Encoding("audio/PCMU", "RAW", "ULAW", (8000,)),
    "alaw": _Encoding("audio/PCMA", "RAW", "ALAW", (8000,)),
}
_BLOCK = 2**16  # samples per write, because some encoders keep all samples of a write on the stack
_UNKNOWN_LENGTH = 0xFFFFFFFF


def to_int16(wave: np.ndarray) -> np.ndarray:
    """Round a float wave in [-1, 1] to little-endian int16 of the same shape; louder samples are clipped.

    Samples that are int16 already stay as they are. Raises `GenerationError` if a sample is NaN or infinite, because
    the model has then failed.
    """
    if wave.dtype == np.int16:
        return wave
    if wave.size == 0:
        return np.zeros(wave.shape, "<i2")
    least, most = _range(wave)
    within = wave if least >= -1.0 and most <= 1.0 else np.clip(wave, -1.0, 1.0)
    scaled: np.ndarray = within * np.float32(FULL_SCALE)
    return np.rint(scaled, out=scaled).astype("<i2")


def _range(wave: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest sample. Raises `GenerationError` if one is NaN or infinite."""
    least, most = wave.min(), wave.max()  # both are NaN if any sample is
    if not (np.isfinite(least) and np.isfinite(most)):
        is_broken = ~np.isfinite(wave)
        first = int(np.argmax(is_broken))
        raise GenerationError(f"{is_broken.sum()} of {wave.size} samples are NaN or infinite, the first at {first}")
    return least, most


def check_format(name: str) -> AudioFormat:
    """Return `name` in lower case if it is an `AudioFormat`; raise `ParameterError` if not."""
    for known in FORMATS:
        if isinstance(name, str) and name.lower() == known:
            return known
    raise ParameterError("audio_format", f"{name!r} is not known; use one of {', '.join(FORMATS)}")


def format_of(path: str | Path) -> AudioFormat:
    """Return the format for the suffix of `path`; raise `ParameterError` if there is none."""
    suffix = Path(path).suffix
    for known in FORMATS:
        if suffix[1:].lower() == known:
            return known
    end = f"ends in {suffix}, which is not an audio format" if suffix else "has no suffix"
    raise ParameterError("path", f"{str(path)!r} {end}; use one of .{', .'.join(FORMATS)}")


def media_type(audio_format: AudioFormat) -> str:
    return _ENCODINGS[audio_format].media_type


def encode(wave: np.ndarray, sample_rate: int, audio_format: AudioFormat) -> bytes:
    """Encode a float wave [samples] in [-1, 1] at `sample_rate` Hz; louder samples are clipped.

    Audio of a rate that the format does not support is resampled (`rate_in`). Raises `GenerationError` for samples that
    are NaN or infinite, for an empty wave unless the format has no header, and for a wave of more than one dimension.
    """
    if wave.ndim != 1:
        raise GenerationError(f"audio to encode has the shape {wave.shape}; it must be [samples], one channel")
    if len(wave) == 0 and audio_format not in RAW:
        raise GenerationError(f"there is no audio to encode as {audio_format}: the wave has no samples")
    rate = rate_in(audio_format, sample_rate)
    if rate != sample_rate and len(wave):
        _range(wave)  # refuses a NaN, which the resampler would spread
        wave = soxr.resample(wave.astype(np.float32), sample_rate, rate)
    samples = to_int16(wave)
    if audio_format == "pcm":
        return samples.tobytes()
    if audio_format == "wav":  # without libsndfile: its callbacks are much slower if several threads encode
        return b"".join((wav_header(rate, len(samples)), samples.data))
    buffer, encoding = io.BytesIO(), _ENCODINGS[audio_format]
    with soundfile.SoundFile(buffer, "w", rate, 1, encoding.coding, format=encoding.container) as sound:
        for start in range(0, len(samples), _BLOCK):
            sound.write(samples[start : start + _BLOCK])
    return buffer.getvalue()


def keeps_rate(audio_format: AudioFormat) -> bool:
    """Return whether audio of any sample rate is encoded without resampling, so that its samples may be int16."""
    return not _ENCODINGS[audio_format].rates


def rate_in(audio_format: AudioFormat, sample_rate: int) -> int:
    """Return the sample rate of a file for audio of `sample_rate` Hz: the same if the format supports it."""
    rates = _ENCODINGS[audio_format].rates
    return sample_rate if not rates or sample_rate in rates else rates[-1]


def wav_header(sample_rate: int, num_samples: int | None = None) -> bytes:
    """Return the header of a wav file of 16-bit mono samples.

    Without `num_samples`, or with more than the header's fields can hold, the length is marked as unknown.
    """
    layout = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)  # PCM, mono, rates, frame, bits
    chunk = b"fmt " + struct.pack("<I", len(layout)) + layout
    num_bytes = _UNKNOWN_LENGTH if num_samples is None else 2 * num_samples
    of_data, of_all = (min(size, _UNKNOWN_LENGTH) for size in (num_bytes, 4 + len(chunk) + 8 + num_bytes))
    return b"RIFF" + struct.pack("<I", of_all) + b"WAVE" + chunk + b"data" + struct.pack("<I", of_data)


def write(path: str | Path, wave: np.ndarray, sample_rate: int, audio_format: AudioFormat) -> None:
    """Write a float wave [samples] to `path` atomically, replacing an existing file.

    Raises the errors of `encode`, and `ParameterError` if the file cannot be written.
    """
    content = encode(wave, sample_rate, audio_format)
    with _naming(path):
        _replace(Path(os.path.realpath(path)), content)  # keep a symbolic link, replace its target


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Raise `ParameterError` with the path for an error in writing it."""
    try:
        yield
    except (OSError, ValueError, soundfile.SoundFileRuntimeError) as error:  # a path with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ParameterError("path", f"cannot write {str(path)!r}: {reason}") from error


@contextmanager
def writing(path: str | Path, sample_rate: int, audio_format: AudioFormat) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that adds a float wave [samples] at `sample_rate` Hz to the file `path`.

    The file replaces an existing one when it is complete, and its header has the length. Raises `ParameterError` if it
    cannot be written, and `GenerationError` if a sample is NaN or infinite.
    """
    target, encoding, rate = Path(os.path.realpath(path)), _ENCODINGS[audio_format], rate_in(audio_format, sample_rate)
    resampler = None if rate == sample_rate else soxr.ResampleStream(sample_rate, rate, 1, dtype="float32")
    folder = Path(tempfile.gettempdir()) if target.is_char_device() else target.parent
    temporary = folder / f".{secrets.token_hex(8)}.tmp"

    def add(wave: np.ndarray, *, is_last: bool = False) -> None:
        if resampler is not None:
            wave = resampler.resample_chunk(wave.astype(np.float32), last=is_last)
        samples = to_int16(wave)
        with _naming(path):
            for start in range(0, len(samples), _BLOCK):
                sound.write(samples[start : start + _BLOCK])
        if audio_format == "wav" and 2 * sound.frames > _UNKNOWN_LENGTH - 100:
            raise ParameterError("path", "a wav file holds at most 4 GB of audio; use flac or mp3")

    try:
        coding, container = encoding.coding or "PCM_16", encoding.container or "RAW"
        endian = "LITTLE" if audio_format == "pcm" else None
        with _naming(path):
            sound = soundfile.SoundFile(temporary, "w", rate, 1, coding, endian, container)
        with sound:
            yield add
            if resampler is not None:
                add(np.zeros(0, np.float32), is_last=True)
            with _naming(path):
                sound.close()
                _deliver(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _deliver(temporary: Path, target: Path) -> None:
    if not target.is_char_device():
        files.replace(temporary, target)
        return
    with temporary.open("rb") as made, target.open("wb") as device:  # such as /dev/null: written to, never replaced
        shutil.copyfileobj(made, device)


def check_writable(path: str | Path, *, is_windows: bool = os.name == "nt") -> None:
    """Raise `ParameterError` if `path` is a folder, its folder does not exist, or permission to write is missing."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ParameterError("path", f"cannot write {str(path)!r}: it is a folder")
    if target.is_char_device():
        if not is_windows and not os.access(target, os.W_OK):
            raise ParameterError("path", f"cannot write {str(path)!r}: no permission")
        return  # the device NUL of Windows has neither permissions nor a folder
    if not target.parent.is_dir():
        raise ParameterError("path", f"cannot write {str(path)!r}: the folder {str(target.parent)!r} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise ParameterError("path", f"cannot write {str(path)!r}: no permission")


def _replace(path: Path, content: bytes) -> None:
    if path.is_char_device():  # such as /dev/null: written to, never replaced
        path.write_bytes(content)
        return
    if path.exists() and not path.is_file():
        raise OSError("it is a folder, a pipe or a device, not a file")
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(content)
        files.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def encodes_fast(audio_format: AudioFormat) -> bool:
    """Return whether encoding takes so little time that an event loop may do it."""
    return audio_format in ("pcm", "wav", "mulaw", "alaw")


class StreamEncoder:
    """Encodes successive float waves [samples] in [-1, 1] at `sample_rate` in Hz as one file.

    The encoded samples do not depend on how the waves are divided.
    """

    def __init__(self, audio_format: AudioFormat, sample_rate: int) -> None:
        self.audio_format = audio_format
        self._file = _OneWayFile()
        self._sound: soundfile.SoundFile | None = None
        self._is_whole = audio_format == "flac"
        self._resampler: soxr.ResampleStream | None = None
        rate = rate_in(audio_format, sample_rate)
        if rate != sample_rate:
            self._resampler = soxr.ResampleStream(sample_rate, rate, 1, dtype="float32")
        if audio_format == "wav":
            self._file.write(wav_header(rate))
        elif audio_format != "pcm":
            encoding = _ENCODINGS[audio_format]
            # A stream's header has no length, so players estimate it from the bit rate, which must be constant:
            # 160 kbit/s from 32 kHz up, 80 from 16 kHz, 32 below.
            steady = {"bitrate_mode": "CONSTANT", "compression_level": 0.5} if audio_format == "mp3" else {}
            self._sound = soundfile.SoundFile(
                self._file, "w", rate, 1, encoding.coding, format=encoding.container, **steady
            )

    def feed(self, wave: np.ndarray) -> bytes:
        """Encode a wave [samples]; return the bytes that can be sent by now, possibly none.

        Raises `GenerationError` if a sample is NaN or infinite.
        """
        if self._sound is None:
            return self._file.take() + to_int16(wave).tobytes()
        self._write(wave, is_last=False)
        return b"" if self._is_whole else self._file.take()

    def finish(self) -> bytes:
        """Return the remaining bytes and close the encoder."""
        if self._resampler is not None:
            self._write(np.zeros(0, np.float32), is_last=True)
        if self._sound is not None:
            self._sound.close()
        return self._file.take()

    def _write(self, wave: np.ndarray, *, is_last: bool) -> None:
        if self._resampler is not None:
            if len(wave):
                _range(wave)  # refuses a NaN, which the resampler would spread
            wave = self._resampler.resample_chunk(wave.astype(np.float32), last=is_last)
        samples = to_int16(wave)
        if self._sound is not None and len(samples):
            self._sound.write(samples)


class _OneWayFile:
    """A file for encoders, emptied piece by piece by `take`; later writes to the bytes taken are ignored."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._taken = 0  # bytes
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
        """Do nothing: nothing is buffered."""
