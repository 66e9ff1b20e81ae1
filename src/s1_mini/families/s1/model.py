"""S1 for many sequences at once: its prompts, the state of its repetition rules, and its sampling.

Shapes: B slots, K codebooks.
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
from s1_mini.families.s1.kernels.sampling import (
    WINDOW,
    RepetitionWindow,
    SamplingInputs,
    SemanticTokens,
    sample_code,
    sample_semantic,
)
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.settings import Heads, RepetitionMode
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.kernels.positions import store_frame
from s1_mini.layers.staging import Writes
from s1_mini.types import Voice


@dataclass(frozen=True)
class S1State(FrameState):
    """The state of B sequences of S1."""

    window: RepetitionWindow
    top_k: Tensor  # int64 [B], of requests to models with repetition-aware sampling


class S1Model(FrameModel[S1State]):
    """One loaded S1 checkpoint."""

    network: S1Network
    compiled_by = "s1_mini.families.s1.compiled"

    def __init__(
        self,
        network: S1Network,
        tokenizer: S1Tokenizer,
        *,
        heads: Heads = "restricted",
        repetition_mode: RepetitionMode = "upstream",
        kv_dtype: torch.dtype | None = None,
        batch_invariant: bool = False,
    ) -> None:
        """Prepare a network; see `FrameModel`."""
        self.tokenizer = tokenizer
        self.heads = heads
        self.repetition_mode = repetition_mode
        self.end = tokenizer.control("im_end")
        self.semantic = (tokenizer.semantic_begin, tokenizer.semantic_end)
        # The rows of a restricted head are the semantic tokens in order, then <|im_end|>; a full head has all tokens.
        self._semantic_tokens = SemanticTokens(
            *self.semantic, self.end, restricted=heads == "restricted", num_codes=network.config.codebook_size
        )
        network.prepare(network.norm.weight.device)
        super().__init__(network, network.embedding(self.semantic), kv_dtype=kv_dtype, batch_invariant=batch_invariant)
        self.ras = network.config.ras
        self.num_uniforms += self.ras is not None

    def prompt(self, text: str, voices: Sequence[Voice] = ()) -> PromptTokens:
        """Build the prompt for one sentence piece.

        Raises the errors of `build_prompt`, and `CapacityError` if it leaves no position for speech.
        """
        return self.check_length(build_prompt(self.tokenizer, self.network.config, text, voices))

    def allocate(self, slots: int, positions: int, kept: Sequence[AlignmentHead] | None = None) -> S1State:
        history = self._zeros(slots, self.ras.window if self.ras else WINDOW, self.num_codebooks + 1)
        window = RepetitionWindow(history, is_fixed=self.repetition_mode == "fixed" and not self.ras)
        return S1State(**self._common_state(slots, positions, kept), window=window, top_k=self._zeros(slots))

    def take(self, state: S1State, slots: Sequence[int], conditions: Sequence[Conditions], writes: Writes) -> None:
        if self.ras:
            writes.rows(state.top_k, slots, np.array([each.sampling.top_k for each in conditions]))

    def begin(
        self, state: S1State, slots: Sequence[int], tokens: np.ndarray, positions: Sequence[int], writes: Writes
    ) -> None:
        super().begin(state, slots, tokens, positions, writes)
        writes.rows(state.window.history, slots, np.zeros((1, state.window.history[0].numel()), np.int64))

    def _sample(
        self,
        codebook: int,
        logits: Tensor,
        embeddings: Tensor,
        *,
        frames: Tensor,
        state: S1State,
        sampling: SamplingTensors,
    ) -> Tensor:
        rows = len(logits)
        inputs = SamplingInputs(SamplingTensors(*(part[:rows] for part in sampling)), state.count[:rows], state.window)
        if self.ras:
            inputs = inputs._replace(ras=self.ras, top_k=state.top_k[:rows])
        if codebook:
            return sample_code(logits, embeddings, frames, inputs, codebook)
        return sample_semantic(logits, embeddings, frames, inputs, self._semantic_tokens)

    def advance(self, state: S1State, frame: Tensor) -> None:
        window = state.window
        store_frame(frame, window.history, state.tokens, state.position, state.count, state.active, window.skipped)
