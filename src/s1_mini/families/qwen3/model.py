"""Qwen3-TTS for many sequences: its prompts, the state of its text and penalty, and its sampling.

Shapes: B slots, K codebooks, V codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.core.messages import Conditions
from s1_mini.core.prompt import PromptTokens
from s1_mini.families.codec_lm.model import FrameModel, FrameState, SamplingTensors
from s1_mini.families.qwen3.config import Defaults, Qwen3Config
from s1_mini.families.qwen3.kernels.sampling import CodeSampling, FirstCode, sample_code
from s1_mini.families.qwen3.network import Qwen3Network
from s1_mini.families.qwen3.prompt import TEXTS, Columns, PromptBuilder
from s1_mini.families.qwen3.settings import TextLayout
from s1_mini.families.qwen3.tokenizer import Qwen2Tokenizer
from s1_mini.families.qwen3.voice import CODES, VECTOR
from s1_mini.kernels.positions import store_frame
from s1_mini.layers.staging import Writes
from s1_mini.types import Voice


@dataclass(frozen=True)
class Qwen3State(FrameState):
    """The state of B sequences of Qwen3-TTS."""

    texts: Tensor  # [B, positions] text token of the position after each frame
    vectors: Tensor  # [B, dim] speaker vectors
    seen: Tensor  # uint8 [B, V]: first codes so far
    top_k: Tensor  # [B] of the first code
    depth: CodeSampling  # of codes 1 … K - 1; its random numbers and counts are those of the first code


class Qwen3Model(FrameModel[Qwen3State]):
    """One loaded Qwen3-TTS checkpoint."""

    network: Qwen3Network
    config: Qwen3Config
    compiled_by = "s1_mini.families.qwen3.compiled"

    def __init__(
        self,
        network: Qwen3Network,
        tokenizer: Qwen2Tokenizer,
        defaults: Defaults,
        *,
        text_layout: TextLayout = "auto",
        kv_dtype: torch.dtype | None = None,
        batch_invariant: bool = False,
    ) -> None:
        """Prepare a network; see `FrameModel`. `defaults` has the sampling of codes 1 … K - 1."""
        self.defaults = defaults
        self.prompts = PromptBuilder(network.config, tokenizer)
        self._text_layout = text_layout
        self._vector_row = Columns(network.config.num_codebooks, network.config.code_size).vector_row
        network.prepare(network.norm.weight.device)
        super().__init__(network, network.embedding(), kv_dtype=kv_dtype, batch_invariant=batch_invariant)

    def prompt(
        self, text: str, voices: Sequence[Voice] = (), *, language: str | None = None, instructions: str = ""
    ) -> PromptTokens:
        """Build the prompt for one sentence piece; see `PromptBuilder`. Raises `VoiceError` or `CapacityError`."""
        voice = voices[0] if voices else None
        is_clone = voice is not None and CODES in voice.tensors
        whole = self._text_layout == "whole" or (self._text_layout == "auto" and not is_clone)
        return self.check_length(
            self.prompts.build(text, voice, language=language, instructions=instructions, whole_text=whole)
        )

    def allocate(self, slots: int, positions: int, kept: Sequence[AlignmentHead] | None = None) -> Qwen3State:
        fields = self._common_state(slots, positions, kept)
        ones = torch.ones(slots, device=self.device)
        table = torch.zeros(slots, 1, self.num_codebooks, device=self.device)
        depth = CodeSampling(ones, self._zeros(slots), ones.clone(), table, fields["count"])
        return Qwen3State(
            **fields,
            texts=self._zeros(slots, min(positions, self.max_positions) + 1),
            vectors=self._zeros(slots, self.config.backbone.dim, dtype=self.dtype),
            seen=self._zeros(slots, self.config.code_size, dtype=torch.uint8),
            top_k=self._zeros(slots),
            depth=depth,
        )

    def take(self, state: Qwen3State, slots: Sequence[int], conditions: Sequence[Conditions], writes: Writes) -> None:
        defaults, depth = self.defaults, state.depth
        # With temperature 0, all codes of a frame are greedy.
        temperatures = [defaults.depth_temperature if each.sampling.temperature else 0.0 for each in conditions]
        writes.rows(state.top_k, slots, np.array([each.sampling.top_k for each in conditions]))
        writes.rows(depth.temperature, slots, np.array(temperatures))
        writes.rows(depth.top_k, slots, np.array([defaults.depth_top_k]))
        writes.rows(depth.top_p, slots, np.array([defaults.depth_top_p]))
        texts = np.full((len(slots), state.texts.shape[1]), self.config.text.pad)
        for slot, text, each in zip(slots, texts, conditions, strict=True):
            if TEXTS in each.voice:  # no step reads tokens that do not fit; the engine rejects a text that has them
                text[: len(each.voice[TEXTS])] = each.voice[TEXTS][: len(text)]
            if VECTOR in each.voice:
                writes.rows(state.vectors, [slot], each.voice[VECTOR][None])
        writes.rows(state.texts, slots, texts)

    def feed(self, state: Qwen3State, slot: int, start: int, tokens: np.ndarray, writes: Writes) -> None:
        if len(tokens):
            writes.first(state.texts[slot, start:], tokens)

    def begin(
        self, state: Qwen3State, slots: Sequence[int], tokens: np.ndarray, positions: Sequence[int], writes: Writes
    ) -> None:
        super().begin(state, slots, tokens, positions, writes)
        writes.rows(state.seen, slots, np.zeros((1, state.seen.shape[1]), np.uint8))

    def _condition(self, state: Qwen3State, x: Tensor, tokens: Tensor, slots: Tensor) -> Tensor:
        is_vector = (tokens[:, 1] == self._vector_row).unsqueeze(1)
        return torch.where(is_vector, x + state.vectors[slots], x)

    def _sample(
        self,
        codebook: int,
        logits: Tensor,
        embeddings: Tensor,
        *,
        frames: Tensor,
        state: Qwen3State,
        sampling: SamplingTensors,
    ) -> Tensor:
        if codebook:
            depth = state.depth._replace(uniforms=sampling.uniforms)
            return sample_code(logits, embeddings, frames, depth, codebook, None)
        rules = CodeSampling(sampling.temperature, state.top_k, sampling.top_p, sampling.uniforms, state.count)
        first = FirstCode(sampling.repetition_penalty, state.seen, state.texts)
        return sample_code(logits, embeddings, frames, rules, 0, first)

    def advance(self, state: Qwen3State, frame: Tensor) -> None:
        store_frame(frame, None, state.tokens, state.position, state.count, state.active, seen=state.seen)
