"""Sampling: a token of each row by its request's temperature, top-k and top-p, and by random numbers of its own.

In the order of transformers: temperature, then the likeliest k, then of these the fewest that together reach p.
Probabilities are whole numbers, whose sums are the same in any order and on any device.
The kernel does the same without a sort. Every id has a key of its own, in the order of its rank. The least key among
the likeliest k, the least in the nucleus, and the key that a random number selects are each the highest one for which
the keys at and above it weigh more than some bound; it is found bit by bit.
Shapes: B rows, V ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.ranking import edge, order

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_IDS = 16_384  # that one program holds
MIN_TEMPERATURE = 1e-5  # at it the choice is the likeliest, the first if several are
WHOLE = 1 << 31
_BITS = 24  # of a random number


def choose(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Choose an id [B] from `logits` [B, V] by `temperature`, `top_k` (0: all), `top_p` and `uniform`, all [B]."""
    if can_choose(logits):
        return _choose_triton(logits, temperature, top_k, top_p, uniform)
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
    """Return the `end` instead of a choice [B] where its probability by `logits` [B, V] is above `min_eos_p`."""
    if not min_eos_p:
        return choice
    return torch.where(logits.float().softmax(-1)[:, end] > min_eos_p, end, choice)


def _shares(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return probabilities as whole numbers."""
    temperature = temperature.clamp_min(MIN_TEMPERATURE).unsqueeze(-1)
    return (((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1) * WHOLE).long()


def _draw(shares: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulative sum of `shares` [..., V] at `uniform` [...]."""
    cumulative = shares.cumsum(-1)
    total = cumulative[..., -1]
    goal = (((uniform * (1 << _BITS)).long() * total) >> _BITS).minimum(total - 1)
    return (cumulative <= goal.unsqueeze(-1)).sum(-1).clamp_max(shares.shape[-1] - 1)  # a row of NaN has none


def can_choose(logits: Tensor) -> bool:
    return runs_triton(logits) and logits.shape[1] <= MAX_IDS


def _choose_triton(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    rows, size = logits.shape
    chosen = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = max(32, triton.next_power_of_2(size))
    _choose_kernel[(rows,)](
        logits,
        temperature,
        top_k,
        top_p,
        uniform,
        chosen,
        size,
        logits.stride(0),
        MIN_TEMPERATURE,
        WHOLE,
        block,
        block.bit_length() - 1,
        **launch(logits),
        num_warps=max(1, min(16, block // 512)),
    )
    return chosen


@jit
def _choose_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    uniform,
    chosen,
    size,
    stride,
    least,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACE_BITS: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    wait_for_last(EARLY)
    heat = tl.maximum(tl.load(temperature + row), least)
    most = tl.load(top_k + row).to(tl.int32)
    share = tl.load(top_p + row).to(tl.float64)
    goal = tl.load(uniform + row)
    logit = tl.load(logits + row * stride + at, mask=inside, other=float("-inf"))
    kind = logit.dtype
    wide = logit.to(tl.float32)
    wide = tl.where(wide == 0.0, 0.0, wide)  # one zero, not two
    BITS: tl.constexpr = kind.primitive_bitwidth
    key = tl.where(inside, (order(wide.to(kind), BITS) << PLACE_BITS) + (BLOCK - 1 - at).to(tl.uint32), 0)
    weight = tl.exp((wide - tl.max(wide, axis=0)) / heat)
    weight = ((weight / tl.sum(weight, axis=0)) * WHOLE).to(tl.int64)
    likeliest = key == tl.max(key, axis=0)
    weight = tl.where(likeliest | (heat > least), weight, 0)  # of some that are equal the first
    ones = tl.where(inside, 1, 0)
    if most > 0:
        least_key = edge(key, ones, most - 1, BITS + PLACE_BITS)
        weight = tl.where(key >= least_key, weight, 0)
    total = tl.sum(weight, axis=0)
    # Out is what has so much before it that the nucleus is full.
    full = tl.math.ceil(share * total.to(tl.float64)).to(tl.int64)
    least_key = edge(key, weight, full - 1, BITS + PLACE_BITS)
    weight = tl.where((key >= least_key) | likeliest, weight, 0)
    total = tl.sum(weight, axis=0)
    bound = tl.minimum(((goal * (1 << 24)).to(tl.int64) * total) >> 24, total - 1)
    least_key = edge(key, weight, bound, BITS + PLACE_BITS)
    choice = tl.sum(tl.where(key == least_key, at, 0), axis=0)
    tl.store(chosen + row, tl.where(choice < size, choice, 0).to(tl.int64))
