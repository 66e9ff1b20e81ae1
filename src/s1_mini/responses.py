"""Results of the engine: the audio of a text, or its error. Depends on audio encoding, not on the engine."""

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
from s1_mini.types import AudioChunk, AudioFormat, FinishReason, SpokenMark, Word


@dataclass(frozen=True)
class GenerationResponse:
    """The audio of one text: a float wave [samples] in [-1, 1] at `sample_rate` in Hz."""

    audio: np.ndarray  # float32 [samples]
    sample_rate: int  # Hz
    frames: int  # frames that the model generated
    finish_reason: FinishReason | None  # length: `max_new_tokens` cut a piece of the text off
    generation_time: float  # seconds
    audio_format: AudioFormat = "wav"  # format of `audio_bytes`
    spoken_text: str = ""  # the normalized text, with numbers and signs in words if the checkpoint reads words
    warning: str | None = None  # skipped characters, or a text in another language
    words: tuple[Word, ...] = ()  # when each word is spoken, if `word_times` was requested
    marks: tuple[SpokenMark, ...] = ()  # `<mark>` elements of SSML and their times, if `word_times` was requested
    is_labelled: bool = True  # whether files state that the audio is synthetic

    success: ClassVar[Literal[True]] = True
    error: ClassVar[None] = None
    error_code: ClassVar[None] = None

    @cached_property
    def audio_bytes(self) -> bytes:
        """The audio as a file of `audio_format`, encoded on first access. Raises `GenerationError`."""
        return encode(self.audio, self.sample_rate, self.audio_format, is_labelled=self.is_labelled)

    def save(self, path: str | Path) -> None:
        """Write the audio to a file, completely or not at all, in the format of its suffix.

        Raises `ParameterError` (field `path`) for an unknown suffix or a file that cannot be written, and
        `GenerationError`.
        """
        write(path, self.audio, self.sample_rate, format_of(path), is_labelled=self.is_labelled)

    @property
    def audio_seconds(self) -> float:
        """Length of the audio in seconds."""
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Generation time per second of audio; below 1 is faster than real time."""
        return self.generation_time / self.audio_seconds if self.audio_seconds else float("inf")


@dataclass(frozen=True)
class GenerationFailure:
    """The error of one text of a batch: its message and its code (`exceptions`)."""

    error: str  # message for people
    error_code: str  # code for programs
    generation_time: float  # seconds

    success: ClassVar[Literal[False]] = False
    audio: ClassVar[None] = None
    audio_bytes: ClassVar[None] = None


# The result of one text of a batch.
GenerationResult = GenerationResponse | GenerationFailure


@dataclass(frozen=True)
class BatchGenerationResponse:
    """The results of several texts."""

    success: bool  # whether all texts were spoken
    results: list[GenerationResult]  # one per text, in order
    total_time: float  # seconds


def collect(
    begun: Iterable[AudioChunk] | S1MiniError,
    started: float,
    audio_format: AudioFormat,
    *,
    return_bytes: bool,
    is_labelled: bool,
) -> GenerationResult:
    """Wait for one item of a batch and return its result, which may be an error."""
    try:
        if isinstance(begun, S1MiniError):
            raise begun
        return whole(begun, started, audio_format, return_bytes=return_bytes, is_labelled=is_labelled)
    except S1MiniError as error:
        return GenerationFailure(str(error), error.code, time.perf_counter() - started)


def whole(
    chunks: Iterable[AudioChunk], started: float, audio_format: AudioFormat, *, return_bytes: bool, is_labelled: bool
) -> GenerationResponse:
    """Join all chunks of a text into one response; generation began at `started` [s, `time.perf_counter`]."""
    received = list(chunks)
    response = GenerationResponse(
        audio=np.concatenate([chunk.audio for chunk in received]),
        sample_rate=received[-1].sample_rate,
        frames=sum(chunk.frames for chunk in received),
        finish_reason=received[-1].finish_reason,
        generation_time=time.perf_counter() - started,
        audio_format=audio_format,
        spoken_text=received[0].spoken_text or "",
        warning=received[0].warning,
        words=tuple(word for chunk in received for word in chunk.words),
        marks=tuple(mark for chunk in received for mark in chunk.marks),
        is_labelled=is_labelled,
    )
    if return_bytes:
        _ = response.audio_bytes
    return response
