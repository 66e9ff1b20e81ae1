"""The loop that speaks: prompt, prefill, one frame a step, frames to sound, pieces joined.

One request at a time. Streamed and whole are the same path; a caller that wants the whole collects the chunks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from s1_mini.audio.join import Joiner
from s1_mini.codecs.base import CodecStream
from s1_mini.exceptions import GenerationError, RequestTimeoutError
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
    sampling: SamplingTensors
    max_frames: int
    num_frames: int = 0
    finish_reason: FinishReason = "length"


class Generator:
    """Speaks sentence pieces with one loaded checkpoint."""

    def __init__(self, speaker: Speaker) -> None:
        self._model, self._codec = speaker.model, speaker.codec
        self._state = self._model.allocate(1, 1)

    def speak(
        self, pieces: Sequence[str], voices: Sequence[Voice], sampling: SamplingParams, *, deadline: float
    ) -> Iterator[AudioChunk]:
        """Yield the sound of `pieces` in order; the last chunk carries the finish reason.

        `deadline` is a `time.monotonic()`. Raises `CapacityError`, `GenerationError` or `RequestTimeoutError`.
        """
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        joiner = Joiner(sample_rate=self._codec.sample_rate)
        reason: FinishReason = "stop"
        for index, text in enumerate(pieces):
            piece = self._begin(text, voices, sampling, seed, index)
            stream = self._codec.open(1)
            for codes in self._blocks(piece, deadline):
                wave = joiner.push(self._decode(stream, codes))
                yield AudioChunk(wave, self._codec.sample_rate, codes.shape[-1])
            reason = "length" if piece.finish_reason == "length" else reason
            if index < len(pieces) - 1:
                yield AudioChunk(joiner.end_piece(), self._codec.sample_rate, 0)
        yield AudioChunk(joiner.finish(), self._codec.sample_rate, 0, reason)

    def _begin(self, text: str, voices: Sequence[Voice], params: SamplingParams, seed: int, index: int) -> _Piece:
        prompt = self._model.prompt(text, voices)
        columns = prompt.columns.shape[1]
        max_frames = min(params.max_new_tokens, self._model.max_columns - columns, self._codec.max_frames)
        if self._state.max_columns < columns + max_frames:
            self._state = self._model.allocate(1, columns + max_frames)
        table = uniforms(seed, index, max_frames, self._model.num_codebooks)
        return _Piece(prompt, self._sampling(params, table), max_frames)

    def _sampling(self, params: SamplingParams, table: Tensor) -> SamplingTensors:
        device = self._model.device

        def row(value: float) -> Tensor:
            return torch.tensor([value], device=device)

        return SamplingTensors(
            row(params.temperature), row(params.top_p), row(params.repetition_penalty), table.unsqueeze(0).to(device)
        )

    def _blocks(self, piece: _Piece, deadline: float) -> Iterator[Tensor]:
        """Yield the codes [1, K, F] of one piece, chunk by chunk."""
        self._prefill(piece.prompt)
        sizes = iter(CHUNK_FRAMES)
        size, block = next(sizes), []
        while piece.num_frames < piece.max_frames:
            if time.monotonic() > deadline:
                raise RequestTimeoutError(f"not finished in time after {piece.num_frames} frames of a sentence")
            frames = self._step(piece)
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
        if piece.num_frames == 0:
            raise GenerationError("the model ended the sentence before its first frame")

    @torch.inference_mode()
    def _prefill(self, prompt: Prompt) -> None:
        self._model.prefill(self._state, 0, prompt.columns[:, :-1])
        self._model.activate(self._state, 0, prompt)

    @torch.inference_mode()
    def _step(self, piece: _Piece) -> Frames:
        return self._model.step(self._state, piece.sampling, span=piece.prompt.columns.shape[1] + piece.num_frames)

    @torch.inference_mode()
    def _decode(self, stream: CodecStream, codes: Tensor) -> np.ndarray:
        return stream.push(codes)[0].float().cpu().numpy()
