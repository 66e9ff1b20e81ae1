"""Drawing tokens from logits: penalty, nucleus, temperature, draw; row by row, without looking at a neighbour.

Works on any device without synchronising. Randomness comes in as uniform numbers that belong to a request
(`uniforms`), so a row's draw depends on its own seed and frame and on nothing else.
Shapes: B rows, V vocabulary, N penalised tokens.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.draw import can_draw, draw_in_one

MIN_TEMPERATURE = 1e-5  # upstream's floor; at it the draw is the arg max


def uniforms(seed: int, piece: int, frames: int, draws: int) -> Tensor:
    """Give the random numbers in [0, 1) of one sentence piece of a request: [frames, draws] fp32.

    Counter-based (Philox, Salmon et al. 2011) and keyed by request and piece, so frame t draws the same numbers
    whatever `frames` is, whoever else is in the batch, and on every device.
    """
    generator = np.random.Generator(np.random.Philox(key=(piece << 64) | seed))
    return torch.from_numpy(generator.random((frames, draws), dtype=np.float32))


def penalise(logits: Tensor, tokens: Tensor, valid: Tensor, penalty: Tensor) -> Tensor:
    """Make `tokens` [B, N] less likely where `valid` [B, N]; once each, however often they occur.

    Negative logits are multiplied by the row's `penalty` [B], others divided (Keskar et al. 2019, CTRL).
    """
    hit = torch.zeros_like(logits).scatter_reduce(1, tokens, valid.to(logits.dtype), reduce="amax") > 0
    penalty = penalty.unsqueeze(1)
    return torch.where(hit, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def ranked_probabilities(logits: Tensor, temperature: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Give probabilities [B, V], most likely first, and the token of each rank [B, V].

    S1's nucleus: on logits before temperature, the token that crosses `top_p` [B] is out, rank 0 is always in.
    """
    ranked, tokens = logits.float().sort(dim=-1, descending=True, stable=True)
    outside = ranked.softmax(-1).cumsum(-1) > top_p.unsqueeze(1)
    outside[:, 0] = False
    heat = temperature.clamp_min(MIN_TEMPERATURE).unsqueeze(1)
    return (ranked / heat).masked_fill(outside, float("-inf")).softmax(-1), tokens


def draw(probabilities: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row [B] by inverting the cumulative distribution at `uniform` [B]."""
    cumulative = probabilities.cumsum(-1)
    # Scaled by the total, and never past the last rank that has any probability: rounding cannot draw outside.
    rank = (cumulative <= uniform.unsqueeze(1) * cumulative[:, -1:]).sum(-1, keepdim=True)
    last = (probabilities > 0).sum(-1, keepdim=True).clamp_min(1) - 1  # a row of NaN has none
    return tokens.gather(1, rank.minimum(last)).squeeze(1)


def draw_token(
    logits: Tensor,
    tokens: Tensor,
    valid: Tensor,
    *,
    penalty: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    """Draw a token of each row [B] from `logits` [B, V] at `uniform` [B], `tokens` [B, N] penalised where `valid`.

    Tokens that have no logit cannot be drawn, so they need no penalty. Penalised logits are rounded to their dtype.
    """
    if can_draw(logits):
        return draw_in_one(logits, tokens, valid, penalty, temperature, top_p, uniform, MIN_TEMPERATURE)[0]
    inside = tokens < logits.shape[1]
    kind = logits.dtype
    logits = penalise(logits.float(), torch.where(inside, tokens, 0), valid & inside, penalty).to(kind)
    return draw(*ranked_probabilities(logits, temperature, top_p), uniform)


def draw_embedded(
    logits: Tensor,
    tokens: Tensor,
    valid: Tensor,
    table: Tensor,
    *,
    penalty: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
) -> tuple[Tensor, Tensor]:
    """Do as `draw_token`, and give the row of `table` [V, D] of each token beside it, [B, D]."""
    if can_draw(logits):
        token, embedded = draw_in_one(
            logits, tokens, valid, penalty, temperature, top_p, uniform, MIN_TEMPERATURE, table
        )
        assert embedded is not None
        return token, embedded
    token = draw_token(logits, tokens, valid, penalty=penalty, temperature=temperature, top_p=top_p, uniform=uniform)
    return token, F.embedding(token, table)
