"""Responses of the engine: the audio of a text, or an error."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from s1_mini.audio.container import encode, format_of, write
from s1_mini.exceptions import S1MiniError
from s1_mini.types import AudioChunk, AudioFormat, FinishReason


@dataclass(frozen=True)
class GenerationResponse:
    """The audio of one text: a float wave [samples] in [-1, 1] at `sample_rate` in Hz."""

    audio: np.ndarray
    sample_rate: int
    frames: int
    finish_reason: FinishReason | None
    generation_time: float  # seconds
    audio_format: AudioFormat = "wav"  # of `audio_bytes`
    spoken_text: str = ""  # what was spoken of the text: numbers and signs in words, where the checkpoint reads words
    warning: str | None = None  # skipped characters, or a text in another language

    success: ClassVar[Literal[True]] = True
    error: ClassVar[None] = None
    error_code: ClassVar[None] = None

    @cached_property
    def audio_bytes(self) -> bytes:
        """The audio as a file of `audio_format`, encoded at the first access. Raises `GenerationError`."""
        return encode(self.audio, self.sample_rate, self.audio_format)

    def save(self, path: str | Path) -> None:
        """Write the audio to a file atomically, in the format of its suffix.

        Raises `ParameterError` for `path`, if the suffix is unknown or the file cannot be written, and
        `GenerationError`.
        """
        write(path, self.audio, self.sample_rate, format_of(path))

    @property
    def audio_seconds(self) -> float:
        """Length of the audio in seconds."""
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of generation per second of audio; below 1 is faster than playback."""
        return self.generation_time / self.audio_seconds if self.audio_seconds else float("inf")


@dataclass(frozen=True)
class GenerationFailure:
    """The error of a text of a batch: a sentence, and its `code` for machines as in `exceptions`."""

    error: str
    error_code: str
    generation_time: float  # seconds

    success: ClassVar[Literal[False]] = False
    audio: ClassVar[None] = None
    audio_bytes: ClassVar[None] = None


GenerationResult = GenerationResponse | GenerationFailure


@dataclass(frozen=True)
class BatchGenerationResponse:
    """One result per text, in order. `success` means that all succeeded."""

    success: bool
    results: list[GenerationResult]
    total_time: float  # seconds


def collect(
    begun: Iterable[AudioChunk] | S1MiniError, started: float, audio_format: AudioFormat, *, return_bytes: bool
) -> GenerationResult:
    """Wait for one item of a batch; return its error if it fails."""
    try:
        if isinstance(begun, S1MiniError):
            raise begun
        return whole(begun, started, audio_format, return_bytes=return_bytes)
    except S1MiniError as error:
        return GenerationFailure(str(error), error.code, time.perf_counter() - started)


def whole(
    chunks: Iterable[AudioChunk], started: float, audio_format: AudioFormat, *, return_bytes: bool
) -> GenerationResponse:
    """Return the response of a text whose generation began at `started` [s, `time.perf_counter`]."""
    heard = list(chunks)
    response = GenerationResponse(
        audio=np.concatenate([chunk.audio for chunk in heard]),
        sample_rate=heard[-1].sample_rate,
        frames=sum(chunk.frames for chunk in heard),
        finish_reason=heard[-1].finish_reason,
        generation_time=time.perf_counter() - started,
        audio_format=audio_format,
        spoken_text=heard[0].spoken_text or "",
        warning=heard[0].warning,
    )
    if return_bytes:
        _ = response.audio_bytes
    return response
