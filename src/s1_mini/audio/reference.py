"""Read a reference recording in a supported container into the mono wave that the codec encodes.

The size is checked before reading, the length before and during decoding, the samples during and after decoding.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from s1_mini.audio.native_noise import kept_out
from s1_mini.exceptions import ReferenceAudioError
from s1_mini.files import open_regular

MIN_REFERENCE_S = 0.5
SILENCE = 1e-3  # peak below -60 dBFS
MAX_PEAK = 16.0  # 24 dB over full scale; a louder wave was never scaled to [-1, 1]
MAX_CHANNELS = 64
MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 384_000

READABLE = "wav, flac, mp3, ogg, opus and aiff can be read"
# Formats that are often sent and cannot be read, by their first bytes: name and usual suffix.
_UNREADABLE = {
    re.compile(magic, re.DOTALL): kind
    for magic, *kind in (
        (rb"....ftyp", "MPEG-4", "m4a"),
        (rb"\x1a\x45\xdf\xa3", "WebM or Matroska", "webm"),
        (rb"\xff[\xf0\xf1\xf8\xf9]|ADIF|\x56[\xe0-\xff]", "AAC", "aac"),
        (rb"\x30\x26\xb2\x75", "Windows Media", "wma"),
        (rb"#!AMR", "AMR", "amr"),
        (rb"caff", "Core Audio", "caf"),
        (rb"\.snd", "AU", "au"),
    )
}
CONVERTIBLE = {"m4a": "mov", "webm": "matroska", "aac": "aac", "amr": "amr"}  # FFmpeg's demuxers, by suffix

# The only containers passed to libsndfile. Its decoders of rarer containers are less tested and print to stdout.
_CONTAINER = re.compile(rb"RIFF....WAVE|RF64....WAVE|FORM....AIF[FC]|fLaC|OggS|\xff[\xe0-\xff]", re.DOTALL)
_FIRST_CHUNK = 12  # place of the first chunk of a wav file
_MAX_CHUNKS = 1000
_ID3_BYTES = 10  # header of an ID3v2 tag, which libsndfile skips before it looks for a container
_MAX_TAGS = 8

_BLOCK = 2**16  # frames decoded at once
_MAX_LOSS_S = 0.1  # mp3 headers round; more missing audio means a file cut short
_UNKNOWN_FRAMES = 2**62  # libsndfile reports 2**63 - 1 for a stream without a length
_UNKNOWN_BYTES = b"\xff" * 4  # size of a wav file's data; libsndfile then reads to the end of the file
_CANCELLED = 0.25  # channels in antiphase leave less than this share of the energy of a better mix


def load_reference(
    audio: bytes | str | Path | np.ndarray,
    *,
    sample_rate: int,
    max_s: float,
    max_bytes: int,
    check: Callable[[], None] = lambda: None,
    convert: Callable[[bytes, str, Callable[[], None]], bytes] | None = None,
) -> np.ndarray:
    """Load a recording as a mono float32 wave [samples] at `sample_rate` in Hz; channels are averaged.

    `audio` is a path, the bytes of a wav (RIFF, RF64), flac, mp3, ogg, opus or aiff file, or a float wave [samples]
    already at `sample_rate`. `check` is called between blocks of 65,536 frames (1.4 s at 48 kHz, 16 s at 4 kHz)
    and may raise to stop the work. `convert` gets a recording in a container of `CONVERTIBLE`, its suffix and `check`,
    and returns a wav file.
    Raises `ReferenceAudioError` if the recording is missing, over `max_bytes` (files), longer than `max_s` or shorter
    than `MIN_REFERENCE_S` seconds, silent, too loud (`MAX_PEAK`), not finite, corrupt, or not audio, or if its type,
    shape, sample rate or number of channels is not supported; and the errors of `check`.
    """
    recording = read_recording(audio, max_bytes)
    with naming(audio):
        if isinstance(recording, np.ndarray):
            level = _Level(sample_rate, max_s)
            level.add(recording)
            level.check()
            return recording.astype(np.float32)
        if suffix := _check_container(recording, converts=convert is not None):
            assert convert is not None
            recording = convert(recording, suffix, check)
        return _decode(recording, sample_rate, max_s, check)


def is_convertible(audio: object) -> bool:
    """Return whether `audio` is the bytes of a file that `load_reference` passes to its `convert`."""
    try:
        return isinstance(audio, bytes) and bool(_check_container(audio, converts=True))
    except ReferenceAudioError:
        return False


def read_recording(audio: bytes | str | Path | np.ndarray, max_bytes: int) -> bytes | np.ndarray:
    """Return an undecoded recording: the bytes of its file, or the wave itself.

    Raises `ReferenceAudioError` if the recording is missing, empty or over `max_bytes` (files), or if its type or
    shape is not supported.
    """
    with naming(audio):
        return _check_array(audio) if isinstance(audio, np.ndarray) else _read(audio, max_bytes)


@contextmanager
def naming(audio: object) -> Iterator[None]:
    """Add the path of a recording, if it was given by path, to errors about it."""
    try:
        yield
    except ReferenceAudioError as error:
        if not isinstance(audio, str | Path):
            raise
        raise ReferenceAudioError(error.field, f"{str(audio)[:200]!r}: {error.reason}") from error


def _error(message: str) -> ReferenceAudioError:
    return ReferenceAudioError("reference_audio", message)


def _check_array(wave: np.ndarray) -> np.ndarray:
    if wave.ndim != 1:
        raise _error(f"an array of shape {wave.shape} is not one row of samples; average its channels first")
    if not np.issubdtype(wave.dtype, np.floating):
        raise _error(f"an array of {wave.dtype} is not a float wave; scale it to [-1, 1] first")
    return wave


def _read(audio: bytes | str | Path, max_bytes: int) -> bytes:
    if isinstance(audio, bytes):
        _check_size(len(audio), max_bytes)
        return audio
    if not isinstance(audio, str | Path):
        raise _error(f"{type(audio).__name__} is not a recording; give a path, the bytes of a file or a float array")
    try:
        return _read_file(Path(audio), max_bytes)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise _error(f"cannot be read: {reason}") from error


def _read_file(path: Path, max_bytes: int) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(size, max_bytes)
        return file.read(size)


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes == 0:
        raise _error("the file is empty")
    if num_bytes > max_bytes:
        allowed = f"at most {max_bytes} are allowed; shorten it, compress it or raise S1_MINI_MAX_REFERENCE_BYTES"
        raise _error(f"the file is {num_bytes} bytes; {allowed}")


def _decode(data: bytes, sample_rate: int, max_s: float, check: Callable[[], None]) -> np.ndarray:
    """Decode, mix and resample block by block, so that only one block at the file's own rate is in memory."""
    try:
        with kept_out(), soundfile.SoundFile(io.BytesIO(_with_length(data))) as sound:
            _check_header(sound, max_s)
            mixed = _mixed(sound, np.ones(sound.channels, np.float32), sample_rate, max_s, check)
            signs = _signs(mixed.products)
            if (signs < 0).any():
                sound.seek(0)
                mixed = _mixed(sound, signs, sample_rate, max_s, check)
            mixed.level.check()
            return mixed.wave
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", str(error)).removeprefix("Error : ").rstrip(".")
        raise _error(f"the file is corrupt or not audio ({reason}); {READABLE}") from error


class _Mixed(NamedTuple):
    wave: np.ndarray  # [samples]
    level: _Level
    products: np.ndarray  # [channels, channels], summed over all samples


def _mixed(
    sound: soundfile.SoundFile, signs: np.ndarray, sample_rate: int, max_s: float, check: Callable[[], None]
) -> _Mixed:
    """Average the channels, each with its sign."""
    level = _Level(sound.samplerate, max_s)
    resampler = soxr.ResampleStream(sound.samplerate, sample_rate, 1, dtype="float32")
    blocks, products = [], np.zeros((sound.channels, sound.channels))
    while len(block := sound.read(_BLOCK, dtype="float32", always_2d=True)):
        check()
        with np.errstate(over="ignore", invalid="ignore"):  # reported by `_Level`
            mono = (block * signs).mean(axis=1)
            products += block.T @ block
        level.add(mono)
        blocks.append(resampler.resample_chunk(mono))
    if sound.frames - level.num_samples > _MAX_LOSS_S * sound.samplerate:
        lengths = f"{level.num_samples / sound.samplerate:.2f} of {sound.frames / sound.samplerate:.2f} s"
        raise _error(f"the file is cut short: it holds {lengths}")
    blocks.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    return _Mixed(np.concatenate(blocks), level, products)


def _signs(products: np.ndarray) -> np.ndarray:
    """Return the sign of each channel: -1 for those in antiphase to the loudest, if they cancel each other."""
    ones = np.ones(len(products), np.float32)
    signs = np.where(products[np.argmax(np.diag(products))] < 0, -ones, ones)
    with np.errstate(over="ignore", invalid="ignore"):
        return signs if ones @ products @ ones < _CANCELLED * (signs @ products @ signs) else ones


def _with_length(data: bytes) -> bytes:
    """Return a wav file whose data size is 0, because it was written as a stream, with an unknown size instead."""
    if data[:4] not in (b"RIFF", b"RF64"):
        return data
    changed: bytearray | None = None
    for place, kind, size in _chunks(data, _FIRST_CHUNK):
        has_no_size = data[place + 16 : place + 24] in (bytes(8), b"\xff" * 8)  # of the data, in RF64
        if kind == b"ds64" and has_no_size and changed is None:
            changed = bytearray(data)
            changed[:4], changed[place : place + 4] = b"RIFF", b"JUNK"
        if kind == b"data":
            if size == 0 and not _are_chunks(data, place + 8):
                changed = changed or bytearray(data)
                changed[place + 4 : place + 8] = _UNKNOWN_BYTES
            break
    return data if changed is None else bytes(changed)


def _chunks(data: bytes, place: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield place, name and size of each chunk from `place`, at most `_MAX_CHUNKS`, which files of audio never have."""
    for _ in range(_MAX_CHUNKS):
        if place + 8 > len(data):
            return
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        yield place, data[place : place + 4], size
        place += 8 + size + size % 2


def _are_chunks(data: bytes, place: int) -> bool:
    """Return whether only chunks with names and plausible sizes follow."""
    end = place
    for start, kind, size in _chunks(data, place):
        if not kind.isascii() or not kind.decode("ascii").isprintable():
            return False
        end = start + 8 + size + size % 2
    return end - len(data) in (0, 1)


def _check_container(data: bytes, *, converts: bool) -> str:
    """Return the suffix of a file to convert, or an empty string for one that libsndfile reads.

    Raises `ReferenceAudioError` unless the magic bytes, after ID3 tags, are those of an allowed container.
    """
    start = 0
    for _ in range(_MAX_TAGS):
        for magic, (name, suffix) in _UNREADABLE.items():
            if magic.match(data, start):
                if converts and suffix in CONVERTIBLE:
                    return suffix
                install = 'pip install "s1-mini[av]", or ' if suffix in CONVERTIBLE else ""
                raise _error(
                    f"the file is {name} ({suffix}), which cannot be read; {READABLE}; {install}convert it, for "
                    f"example: ffmpeg -i recording.{suffix} -ac 1 recording.wav"
                )
        if _CONTAINER.match(data, start):
            return ""
        if data[start : start + 3] != b"ID3":
            break
        size = 0
        for byte in data[start + 6 : start + _ID3_BYTES]:
            size = size << 7 | byte & 0x7F
        start += _ID3_BYTES + size
    raise _error(f"the file is not audio of a supported format (it begins with {data[:4]!r}); {READABLE}")


def _check_header(sound: soundfile.SoundFile, max_s: float) -> None:
    if not 1 <= sound.channels <= MAX_CHANNELS:
        raise _error(f"the file has {sound.channels} channels; 1 to {MAX_CHANNELS} are allowed")
    if not MIN_RATE_HZ <= sound.samplerate <= MAX_RATE_HZ:
        allowed = f"{MIN_RATE_HZ} to {MAX_RATE_HZ} Hz are allowed"
        raise _error(f"the file has a sample rate of {sound.samplerate} Hz; {allowed}")
    if sound.frames > _UNKNOWN_FRAMES:
        raise _error(
            "the file's header does not state its length, as with a recorded stream; save it again with an audio editor"
        )
    _check_length(sound.frames, sound.samplerate, max_s)


def _check_length(num_samples: int, rate: int, max_s: float) -> None:
    if num_samples > max_s * rate:
        allowed = f"at most {max_s:g} s are allowed; cut it or raise S1_MINI_MAX_REFERENCE_S"
        raise _error(f"the recording lasts {num_samples / rate:.2f} s; {allowed}")


class _Level:
    def __init__(self, rate: int, max_s: float) -> None:
        self._rate, self._max_s = rate, max_s
        self.num_samples, self._peak = 0, 0.0

    def add(self, block: np.ndarray) -> None:
        """Count the next samples. Raises `ReferenceAudioError` for a NaN, or if the recording is too long."""
        self.num_samples += len(block)
        _check_length(self.num_samples, self._rate, self._max_s)
        if not np.isfinite(block).all():
            raise _error("the recording has samples that are NaN or infinite; export it again")
        self._peak = max(self._peak, float(np.abs(block).max(initial=0.0)))

    def check(self) -> None:
        """Raise `ReferenceAudioError` if the recording is too short, too quiet or too loud."""
        if self.num_samples < MIN_REFERENCE_S * self._rate:
            given = f"the recording lasts {self.num_samples / self._rate:.2f} s"
            raise _error(f"{given}; at least {MIN_REFERENCE_S:g} s are needed")
        if self._peak < SILENCE:
            raise _error("the recording is silent: its peak lies below -60 dBFS; check the microphone or the file")
        if self._peak > MAX_PEAK:
            raise _error(f"the recording peaks at {self._peak:g}; scale it to [-1, 1]")
