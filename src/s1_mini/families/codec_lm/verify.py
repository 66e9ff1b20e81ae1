"""Run a codec language model along given frames, to compare it with the original implementation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.families.codec_lm.model import FrameModel, State


def run_forced(model: FrameModel[State], state: State, start: int, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run `frames` [F, K + 1], tokens and codes, with teacher forcing, after a prompt of `start` positions.

    Returns the hidden states before the norm [F, dim], the logits of the first code [F, V'], and those of the codes
    1 … K - 1 [F, K - 1, V].
    """
    network = model.network
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    for index, frame in enumerate(frames):
        seen: list[Tensor] = []

        def follow(
            codebook: int, logits: Tensor, embeddings: Tensor, frame: Tensor = frame, seen: list[Tensor] = seen
        ) -> Tensor:
            seen.append(logits[0])
            return F.embedding(frame[codebook + 1 : codebook + 2], embeddings)

        hidden = model.hidden(state, span=start + index)
        first = F.embedding(frame[1:2], network.depth_embeddings(0))
        network.depth(hidden, first, state.depth_cache, state.pairs, follow)
        steps.append((hidden[0], network.semantic_logits(hidden)[0], torch.stack(seen)))
        model.advance(state, frame.unsqueeze(0))
    hidden_states, logits, code_logits = (torch.stack(parts) for parts in zip(*steps, strict=True))
    return hidden_states, logits, code_logits
