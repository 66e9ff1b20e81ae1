"""Choose a token of each row by its request's temperature, top-k and top-p, and by random numbers of its own.

In the order of transformers: temperature, then the likeliest k, then of these the fewest that together reach p.
Probabilities are taken as whole numbers, whose sums are the same in any order and on any device.
Shapes: B rows, V ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.families.cascade.kernels.choose import can_choose, choose_triton

MIN_TEMPERATURE = 1e-5  # at it the choice is the likeliest, the first if several are
WHOLE = 1 << 31
_BITS = 24  # of a random number


def choose(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Choose an id [B] from `logits` [B, V] by `temperature`, `top_k` (0: all), `top_p` and `uniform`, all [B]."""
    if can_choose(logits):
        return choose_triton(logits, temperature, top_k, top_p, uniform, MIN_TEMPERATURE, WHOLE)
    ranked, ids = logits.float().sort(dim=-1, descending=True, stable=True)
    shares = _shares(ranked, temperature)
    ranks = torch.arange(ranked.shape[-1], device=ranked.device)
    most = torch.where(top_k > 0, top_k, ranked.shape[-1])
    most = torch.where(temperature > MIN_TEMPERATURE, most, 1)  # of some that are equal the first
    shares = shares.where(ranks < most.unsqueeze(-1), 0)
    before = shares.cumsum(-1) - shares
    total = shares.sum(-1, keepdim=True)
    reached = before.double() >= top_p.double().unsqueeze(-1) * total.double()
    shares = shares.where(~reached | (ranks == 0), 0)
    return ids.gather(-1, _draw(shares, uniform).unsqueeze(-1)).squeeze(-1)


def choose_plain(logits: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    """Choose an id [...] from `logits` [..., V] by `temperature` and `uniform`, both [...]."""
    logits = logits.float()
    shares = _shares(logits, temperature)
    return torch.where(temperature > MIN_TEMPERATURE, _draw(shares, uniform), logits.argmax(-1))


def end_early(logits: Tensor, choice: Tensor, end: int, min_eos_p: float) -> Tensor:
    """Give the `end` instead of a choice [B] where its probability by `logits` [B, V] is above `min_eos_p`."""
    if not min_eos_p:
        return choice
    return torch.where(logits.float().softmax(-1)[:, end] > min_eos_p, end, choice)


def _shares(logits: Tensor, temperature: Tensor) -> Tensor:
    """Give probabilities as whole numbers."""
    heat = temperature.clamp_min(MIN_TEMPERATURE).unsqueeze(-1)
    return (((logits - logits.amax(-1, keepdim=True)) / heat).softmax(-1) * WHOLE).long()


def _draw(shares: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulative sum of `shares` [..., V] at `uniform` [...]."""
    cumulative = shares.cumsum(-1)
    total = cumulative[..., -1]
    goal = (((uniform * (1 << _BITS)).long() * total) >> _BITS).minimum(total - 1)
    return (cumulative <= goal.unsqueeze(-1)).sum(-1).clamp_max(shares.shape[-1] - 1)  # a row of NaN has none
