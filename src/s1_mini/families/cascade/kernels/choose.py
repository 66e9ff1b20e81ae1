"""Sample a token for each row with the temperature, top-k, top-p and random number of its request.

The order is that of transformers: temperature, then top-k, then top-p of the remaining tokens. Probabilities are
integers, whose sums are the same in any order and on any device. The kernel does not sort. It gives every id a distinct
key in the order of the logits, and finds three keys: the lowest of the top k, the lowest of the nucleus, and that of
the sampled token. Each is the highest key for which the ids with this or a higher key together exceed a bound, in
number or in total probability; a bitwise search (`ranking.edge`) finds it.
Shapes: B rows, V ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.ranking import MIN_TEMPERATURE, SCALE, edge, invert, order, to_integers

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_IDS = 16_384  # maximum number of ids that fit in the registers of one program


def choose(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Sample ids [B] from `logits` [B, V] with `temperature`, `top_k` (0: all), `top_p` and `uniform`, all [B]."""
    if fits_kernel(logits):
        return _choose_triton(logits, temperature, top_k, top_p, uniform)
    ranked, ids = logits.float().sort(dim=-1, descending=True, stable=True)
    shares = _shares(ranked, temperature)
    ranks = torch.arange(ranked.shape[-1], device=ranked.device)
    most = torch.where(top_k > 0, top_k, ranked.shape[-1])
    most = torch.where(temperature > MIN_TEMPERATURE, most, 1)  # greedy: the first of equal logits
    shares = shares.where(ranks < most.unsqueeze(-1), 0)
    before = shares.cumsum(-1) - shares
    total = shares.sum(-1, keepdim=True)
    reached = before.double() >= top_p.double().unsqueeze(-1) * total.double()
    shares = shares.where(~reached | (ranks == 0), 0)
    return ids.gather(-1, invert(shares, uniform).unsqueeze(-1)).squeeze(-1)


def choose_plain(logits: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    """Sample ids [...] from `logits` [..., V] with `temperature` and `uniform`, both [...]."""
    logits = logits.float()
    shares = _shares(logits, temperature)
    return torch.where(temperature > MIN_TEMPERATURE, invert(shares, uniform), logits.argmax(-1))


def end_early(logits: Tensor, choice: Tensor, end: int, min_eos_p: float) -> Tensor:
    """Replace chosen ids [B] by the id `end` where its probability, from `logits` [B, V], is above `min_eos_p`."""
    if not min_eos_p:
        return choice
    return torch.where(logits.float().softmax(-1)[:, end] > min_eos_p, end, choice)


def _shares(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return probabilities as integers."""
    temperature = temperature.clamp_min(MIN_TEMPERATURE).unsqueeze(-1)
    return to_integers(((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1))


def fits_kernel(logits: Tensor) -> bool:
    return runs_triton(logits) and logits.shape[1] <= MAX_IDS


def _choose_triton(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    rows, size = logits.shape
    sampled = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = max(32, triton.next_power_of_2(size))
    _choose_kernel[(rows,)](
        logits,
        temperature,
        top_k,
        top_p,
        uniform,
        sampled,
        size,
        logits.stride(0),
        MIN_TEMPERATURE,
        SCALE,
        block,
        block.bit_length() - 1,
        **launch(logits),
        num_warps=max(1, min(16, block // 512)),
    )
    return sampled


@jit
def _choose_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    uniform,
    sampled,
    size,
    stride,
    min_temperature,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    ID_BITS: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    wait_for_last(EARLY)
    clamped = tl.maximum(tl.load(temperature + row), min_temperature)
    most = tl.load(top_k + row).to(tl.int32)
    share = tl.load(top_p + row).to(tl.float64)
    goal = tl.load(uniform + row)
    logit = tl.load(logits + row * stride + at, mask=inside, other=float("-inf"))
    original = logit.dtype
    value = logit.to(tl.float32)
    value = tl.where(value == 0.0, 0.0, value)  # turns -0 into 0
    BITS: tl.constexpr = original.primitive_bitwidth
    key = tl.where(inside, (order(value.to(original), BITS) << ID_BITS) + (BLOCK - 1 - at).to(tl.uint32), 0)
    weight = tl.exp((value - tl.max(value, axis=0)) / clamped)
    weight = ((weight / tl.sum(weight, axis=0)) * SCALE).to(tl.int64)
    likeliest = key == tl.max(key, axis=0)
    weight = tl.where(likeliest | (clamped > min_temperature), weight, 0)  # greedy: the first of equal logits
    ones = tl.where(inside, 1, 0)
    if most > 0:
        edge_key = edge(key, ones, most - 1, BITS + ID_BITS)
        weight = tl.where(key >= edge_key, weight, 0)
    total = tl.sum(weight, axis=0)
    # Exclude an id if the likelier ids alone already have the probability of the nucleus.
    needed = tl.math.ceil(share * total.to(tl.float64)).to(tl.int64)
    edge_key = edge(key, weight, needed - 1, BITS + ID_BITS)
    weight = tl.where((key >= edge_key) | likeliest, weight, 0)
    total = tl.sum(weight, axis=0)
    bound = tl.minimum(((goal * (1 << 24)).to(tl.int64) * total) >> 24, total - 1)
    edge_key = edge(key, weight, bound, BITS + ID_BITS)
    choice = tl.sum(tl.where(key == edge_key, at, 0), axis=0)
    tl.store(sampled + row, tl.where(choice < size, choice, 0).to(tl.int64))
