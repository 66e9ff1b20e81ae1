"""Finished waves as files: wav, flac, mp3, Ogg Opus, or bare 16-bit samples; in memory or on disk.

Everything is mono and 16 bit. Knows what libsndfile can write and which rates a format takes. The engine and the
command line call it.
"""

from __future__ import annotations

import io
import os
import secrets
import struct
from pathlib import Path
from typing import get_args

import numpy as np
import soundfile
import soxr

from s1_mini.audio.pcm import to_int16
from s1_mini.exceptions import GenerationError, ParameterError
from s1_mini.files import files
from s1_mini.types import AudioFormat

FORMATS: tuple[AudioFormat, ...] = get_args(AudioFormat)

# Container and coding, as libsndfile names them.
ENCODINGS = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
    "ogg": ("OGG", "OPUS"),
}
_MEDIA_TYPES = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "ogg": "audio/ogg",
    "pcm": "audio/pcm",
}
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_RATES = {
    "mp3": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
    "opus": _OPUS_RATES,
    "ogg": _OPUS_RATES,
}
_RATE_FOR_THE_REST = 48_000
_BLOCK = 2**16  # samples given to an encoder at once; some keep a whole write on the stack
_UNKNOWN_LENGTH = 0xFFFFFFFF


def check_format(name: str) -> AudioFormat:
    """Return `name` in lower case if it is an `AudioFormat`; raise `ParameterError` if not."""
    for known in FORMATS:
        if isinstance(name, str) and name.lower() == known:
            return known
    raise ParameterError("audio_format", f"{name!r} is not known; allowed are {', '.join(FORMATS)}")


def format_of(path: str | Path) -> AudioFormat:
    """Read the format off the suffix of `path`; raise `ParameterError` if there is none or it is not known."""
    suffix = Path(path).suffix
    for known in FORMATS:
        if suffix[1:].lower() == known:
            return known
    end = f"ends in {suffix}, which is no format of sound" if suffix else "has no suffix"
    raise ParameterError("path", f"{str(path)!r} {end}; allowed are .{', .'.join(FORMATS)}")


def media_type(audio_format: AudioFormat) -> str:
    """Return the media type for an HTTP answer, such as audio/mpeg."""
    return _MEDIA_TYPES[audio_format]


def encode(wave: np.ndarray, sample_rate: int, audio_format: AudioFormat) -> bytes:
    """Encode a float wave [samples] in [-1, 1]; clipped beyond.

    Rates that mp3 or Opus cannot hold are resampled to 48 kHz. Raises `GenerationError` if a sample is NaN or
    infinite, if there are none and the format is not pcm, or if the wave has other than one dimension.
    """
    if wave.ndim != 1:
        raise GenerationError(f"sound to encode has the shape {wave.shape}; allowed is [samples], one channel")
    if audio_format == "pcm":
        return to_int16(wave).tobytes()
    if len(wave) == 0:
        raise GenerationError(f"there is no sound to encode as {audio_format}: the wave has no samples")
    rate = rate_in(audio_format, sample_rate)
    if rate != sample_rate:
        wave = soxr.resample(wave, sample_rate, rate)
    samples = to_int16(wave)
    if audio_format == "wav":  # without libsndfile, whose calls back cost threads that encode side by side far more
        return b"".join((wav_header(rate, len(samples)), samples.data))
    return _encode(samples, rate, *ENCODINGS[audio_format])


def rate_in(audio_format: AudioFormat, sample_rate: int) -> int:
    """Return the rate in Hz that a file has for sound of `sample_rate`: the same wherever its format can hold it."""
    return sample_rate if sample_rate in _RATES.get(audio_format, (sample_rate,)) else _RATE_FOR_THE_REST


def wav_header(sample_rate: int, num_samples: int | None = None) -> bytes:
    """Return what stands before 16-bit mono samples in a wav file.

    Without a number of them, or with more than its fields hold, any number may follow, as through a pipe.
    """
    layout = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)  # PCM, mono, rates, frame, bits
    chunk = b"fmt " + struct.pack("<I", len(layout)) + layout
    num_bytes = _UNKNOWN_LENGTH if num_samples is None else 2 * num_samples
    of_data, of_all = (min(size, _UNKNOWN_LENGTH) for size in (num_bytes, 4 + len(chunk) + 8 + num_bytes))
    return b"RIFF" + struct.pack("<I", of_all) + b"WAVE" + chunk + b"data" + struct.pack("<I", of_data)


def write(path: str | Path, wave: np.ndarray, sample_rate: int, audio_format: AudioFormat) -> None:
    """Write a float wave [samples] to `path` whole or not at all; a file that was there is replaced.

    Raises `GenerationError` as `encode` does and `ParameterError` if the file cannot be written.
    """
    content = encode(wave, sample_rate, audio_format)
    try:
        _replace(Path(os.path.realpath(path)), content)  # through a link, not instead of it
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ParameterError("path", f"cannot write {str(path)!r}: {reason}") from error


def _encode(samples: np.ndarray, sample_rate: int, container: str, coding: str) -> bytes:
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", sample_rate, 1, coding, format=container) as sound:
        for start in range(0, len(samples), _BLOCK):
            sound.write(samples[start : start + _BLOCK])
    return buffer.getvalue()


def check_writable(path: str | Path, *, is_windows: bool = os.name == "nt") -> None:
    """Raise `ParameterError` where `write` could not create or replace `path`: no folder, no permission, no file."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ParameterError("path", f"cannot write {str(path)!r}: it is a folder")
    if target.is_char_device():
        if not is_windows and not os.access(target, os.W_OK):
            raise ParameterError("path", f"cannot write {str(path)!r}: no permission")
        return  # Windows tells nothing of its NUL, which has no folder either
    if not target.parent.is_dir():
        raise ParameterError("path", f"cannot write {str(path)!r}: there is no folder {str(target.parent)!r}")
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
