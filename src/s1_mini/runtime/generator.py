"""The loop that speaks: prompt, prefill, one frame a step, frames to sound, pieces joined.

Every request has a state of its own, so several may be under way; the device is taken for one call at a time and
never held while a caller makes up its mind. Streamed and whole are the same path.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from s1_mini.audio.join import Joiner
from s1_mini.codecs.base import CodecStream
from s1_mini.exceptions import CapacityError, EngineNotReadyError, GenerationError, RequestTimeoutError
from s1_mini.layers.sampling import uniforms
from s1_mini.models.base import Frames, Prompt, SamplingTensors
from s1_mini.runtime.loader import Speaker
from s1_mini.types import AudioChunk, FinishReason, SamplingParams, Voice

# Frames per chunk, the last for all further ones: a first sound after 0.19 s of speech, then ever fewer, larger ones.
CHUNK_FRAMES = (4, 4, 8, 16, 25)


@dataclass
class _Piece:
    """One sentence piece while it is spoken."""

    prompt: Prompt
    state: Any
    sampling: SamplingTensors
    max_frames: int
    num_frames: int = 0
    finish_reason: FinishReason = "length"


Result = TypeVar("Result")


class Generator:
    """Speaks sentence pieces with one loaded checkpoint; safe to use from several threads."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker, self._model = speaker, speaker.model
        self._device_lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """End what is being spoken, at its next frame, with `EngineNotReadyError`."""
        self._closed = True

    def encode(self, wave: Tensor) -> Tensor:
        """Encode one reference wave [samples] to codes [K, F]; the encoding half is loaded when first needed."""
        return self._on_device(lambda: self._speaker.encoding_codec().encode(wave.to(self._model.device)).cpu())

    def speak(
        self, pieces: Sequence[str], voices: Sequence[Voice], sampling: SamplingParams, *, deadline: float
    ) -> Iterator[AudioChunk]:
        """Yield the sound of `pieces` in order; the last chunk carries the finish reason.

        `deadline` is a `time.monotonic()`. Raises `EngineError`: `CapacityError`, `GenerationError`,
        `RequestTimeoutError` or, once closed, `EngineNotReadyError`.
        """
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        codec = self._speaker.codec
        joiner = Joiner(sample_rate=codec.sample_rate)
        reason: FinishReason = "stop"
        for index, text in enumerate(pieces):
            piece = self._on_device(partial(self._begin, text, voices, sampling, seed, index))
            stream = codec.open(1)
            for codes in self._blocks(piece, deadline):
                wave = joiner.push(self._on_device(partial(_decode, stream, codes)))
                yield AudioChunk(wave, codec.sample_rate, codes.shape[-1])
            reason = "length" if piece.finish_reason == "length" else reason
            if index < len(pieces) - 1:
                yield AudioChunk(joiner.end_piece(), codec.sample_rate, 0)
        yield AudioChunk(joiner.finish(), codec.sample_rate, 0, reason)

    def _begin(self, text: str, voices: Sequence[Voice], params: SamplingParams, seed: int, index: int) -> _Piece:
        prompt = self._model.prompt(text, voices)
        columns = prompt.columns.shape[1]
        max_frames = min(params.max_new_tokens, self._model.max_columns - columns, self._speaker.codec.max_frames)
        state = self._model.allocate(1, columns + max_frames)
        table = uniforms(seed, index, max_frames, self._model.num_codebooks)
        self._model.prefill(state, 0, prompt.columns[:, :-1])
        self._model.activate(state, 0, prompt)
        return _Piece(prompt, state, self._sampling(params, table), max_frames)

    def _sampling(self, params: SamplingParams, table: Tensor) -> SamplingTensors:
        device = self._model.device

        def row(value: float) -> Tensor:
            return torch.tensor([value], device=device)

        return SamplingTensors(
            row(params.temperature), row(params.top_p), row(params.repetition_penalty), table.unsqueeze(0).to(device)
        )

    def _blocks(self, piece: _Piece, deadline: float) -> Iterator[Tensor]:
        """Yield the codes [1, K, F] of one piece, chunk by chunk."""
        sizes = iter(CHUNK_FRAMES)
        size, block = next(sizes), []
        while piece.num_frames < piece.max_frames:
            if time.monotonic() > deadline:
                raise RequestTimeoutError(f"not finished in time after {piece.num_frames} frames of a sentence")
            frames = self._on_device(partial(self._step, piece))
            if not bool(frames.valid):
                raise GenerationError(f"the model's logits were not finite at frame {piece.num_frames}")
            if bool(frames.stop):
                piece.finish_reason = "stop"
                break
            piece.num_frames += 1
            block.append(frames.codes)
            if len(block) == size:
                yield torch.stack(block, dim=-1)
                size, block = next(sizes, size), []
        if block:
            yield torch.stack(block, dim=-1)

    def _step(self, piece: _Piece) -> Frames:
        span = piece.prompt.columns.shape[1] + piece.num_frames
        return self._model.step(piece.state, piece.sampling, span)

    def _on_device(self, work: Callable[[], Result]) -> Result:
        """Do one piece of work while nobody else uses the device."""
        with self._device_lock, torch.inference_mode():
            if self._closed:
                raise EngineNotReadyError("the engine was stopped while this was being spoken")
            try:
                return work()
            except torch.OutOfMemoryError as error:
                raise CapacityError(f"out of memory: {str(error).partition('.')[0]}. Use a shorter text.") from None


def _decode(stream: CodecStream, codes: Tensor) -> np.ndarray:
    wave: np.ndarray = stream.push(codes)[0].float().cpu().numpy()
    if not np.isfinite(wave).all():
        raise GenerationError("the codec gave samples that are not finite; its weights may be damaged")
    return wave
