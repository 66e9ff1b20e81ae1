"""Sample one code of each row in one kernel, without a sort, in transformers' order.

The steps are the penalty of the utterance's first codes so far, temperature, top-k (all codes that are as likely as the
k-th are kept), top-p (the code that crosses it is included), and the choice by the random number. Probabilities are
integers in units of 1 / `SCALE`.
Shapes: B rows, V logits, K codebooks, D channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.ranking import MIN_TEMPERATURE, SCALE, edge, find_token, order, sample, to_integers

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_VOCABULARY = 8192  # maximum number of codes that fit in the registers of one program
MIN_FRAMES = 2  # number of frames before the end may be sampled, as in the original implementation


class CodeSampling(NamedTuple):
    """Sampling parameters of B rows or more, on the device."""

    temperature: Tensor  # [B]
    top_k: Tensor  # [B] int64; 0: all
    top_p: Tensor  # [B]
    uniforms: Tensor  # [B, frames, K] in [0, 1)
    num_frames: Tensor  # [B] number of frames generated so far


class FirstCode(NamedTuple):
    """Other inputs of sampling the first code of a frame, for B rows or more."""

    penalty: Tensor  # [B]
    seen: Tensor  # uint8 [B, V - 1]: first codes of this utterance so far
    texts: Tensor  # [B, T] text token of the position after each frame


def sample_code(
    logits: Tensor, embeddings: Tensor, frames: Tensor, sampling: CodeSampling, codebook: int, first: FirstCode | None
) -> Tensor:
    """Sample the code of `codebook` of each row from `logits` [B, V] into `frames`, int64 [B, K + 3].

    Only codebook 0 has `first`. Its last logit is that of the utterance's end, and its call also stores the next
    position's text token, whether the utterance ends, and whether the logits were finite. Returns the embeddings [B, D]
    of the codes, from `embeddings` [codes, D].
    """
    if runs_triton(logits) and logits.shape[1] <= MAX_VOCABULARY:
        return _sample_triton(logits, embeddings, frames, sampling, codebook, first)
    rows, books = len(logits), frames.shape[1] - 3
    row, count = torch.arange(rows, device=logits.device), sampling.num_frames[:rows]
    scores = logits.float()
    if first is not None:
        frames[:, books + 2] = logits.abs().amax(-1) < math.inf  # false for NaN
        penalty, hit = first.penalty[:rows].unsqueeze(1), F.pad(first.seen[:rows], (0, 1)) > 0
        scores = torch.where(hit, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
        scores[:, -1] = torch.where(count < MIN_FRAMES, -math.inf, scores[:, -1])
    parameters = (part[:rows] for part in (sampling.temperature, sampling.top_k, sampling.top_p))
    choice = sample(probabilities(scores, *parameters), sampling.uniforms[row, count, codebook])
    if first is not None:
        stop = choice == logits.shape[1] - 1
        choice = torch.where(stop, 0, choice)
        frames[:, 0], frames[:, books + 1] = first.texts[row, count], stop
    frames[:, codebook + 1] = choice
    return F.embedding(choice, embeddings)


def probabilities(scores: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return the probability of every code [B, V] from float32 `scores` [B, V]; the parameters are [B]."""
    size = scores.shape[1]
    ranked, codes = scores.sort(dim=-1, descending=True, stable=True)
    most = torch.where(top_k > 0, top_k, size).clamp_max(size)
    kept = scores >= ranked.gather(1, (most - 1).unsqueeze(1))
    kept &= (temperature > MIN_TEMPERATURE).unsqueeze(1) | F.one_hot(codes[:, 0], size).bool()
    scaled = (scores - ranked[:, :1]) / temperature.clamp_min(MIN_TEMPERATURE).unsqueeze(1)
    shares = scaled.masked_fill(~kept, -math.inf).softmax(-1)
    mass = to_integers(shares.gather(1, codes))
    outside = mass.cumsum(-1) - mass >= to_integers(top_p).clamp_min(1).unsqueeze(1)
    outside = torch.empty_like(outside).scatter_(1, codes, outside)
    return torch.where(outside, 0, shares) / torch.where(outside, 0, shares).sum(-1, keepdim=True)


def _sample_triton(
    logits: Tensor, embeddings: Tensor, frames: Tensor, sampling: CodeSampling, codebook: int, first: FirstCode | None
) -> Tensor:
    rows, size = logits.shape
    width = embeddings.shape[1]
    embedded = torch.empty(rows, width, dtype=embeddings.dtype, device=embeddings.device)
    block = max(32, triton.next_power_of_2(size))
    _sample_kernel[(rows,)](
        logits,
        *sampling,
        *(first or (None, None, None)),
        embeddings,
        frames,
        embedded,
        codebook,
        size,
        logits.stride(0),
        sampling.uniforms.stride(0),
        sampling.uniforms.stride(1),
        first.seen.stride(0) if first else 0,
        first.texts.stride(0) if first else 0,
        MIN_TEMPERATURE,
        MIN_FRAMES,
        SCALE,
        block,
        block.bit_length() - 1,
        width,
        frames.shape[1] - 3,
        **launch(logits),
        num_warps=max(1, block // 512),
    )
    return embedded


@jit
def _sample_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    uniforms,
    count,
    penalty,
    seen,
    texts,
    embeddings,
    frames,
    embedded,
    codebook,
    size,
    logits_stride,
    uniforms_stride,
    uniforms_frame_stride,
    seen_stride,
    texts_stride,
    min_temperature,
    min_frames,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    CODE_BITS: tl.constexpr,
    WIDTH: tl.constexpr,
    BOOKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    # The next loads come before `wait_for_last`, because no earlier kernel of this frame writes these data.
    frame = tl.load(count + row)
    heat = tl.load(temperature + row)
    inverse_temperature = 1.0 / tl.maximum(heat, min_temperature)
    most = tl.load(top_k + row).to(tl.int32)
    nucleus = tl.load(top_p + row)
    uniform = tl.load(uniforms + row * uniforms_stride + frame * uniforms_frame_stride + codebook)
    if seen is not None:
        factor = tl.load(penalty + row)
        hit = tl.load(seen + row * seen_stride + at, mask=at < size - 1, other=0) != 0
        text = tl.load(texts + row * texts_stride + frame)
    wait_for_last(EARLY)
    logit = tl.load(logits + row * logits_stride + at, mask=inside, other=float("-inf"))
    score = logit.to(tl.float32)
    to = frames + row * (BOOKS + 3)
    if seen is not None:
        not_finite = tl.where(inside & ~(tl.abs(score) < float("inf")), 1, 0)  # infinite or NaN
        tl.store(to + BOOKS + 2, (tl.sum(not_finite, axis=0) == 0).to(tl.int64))
        score = tl.where(hit, tl.where(score < 0, score * factor, score / factor), score)
        score = tl.where(at == tl.where(frame < min_frames, size - 1, BLOCK), float("-inf"), score)
    score = tl.where(score == 0.0, 0.0, score)  # turns -0 into 0
    BITS: tl.constexpr = 32 if seen is not None else logit.dtype.primitive_bitwidth  # the penalty is applied in float32
    value = order(score if seen is not None else score.to(logit.dtype), BITS)
    value = tl.where(inside, value, 0)
    key = (value << CODE_BITS) + (BLOCK - 1 - at).to(value.dtype)
    likeliest = key == tl.max(key, axis=0)
    share = tl.exp((score - tl.max(score, axis=0)) * inverse_temperature)
    share = tl.where(likeliest, share, share * tl.where(heat > min_temperature, 1.0, 0.0))
    if most > 0:
        share = tl.where(value >= edge(value, tl.where(inside, 1, 0), most - 1, BITS), share, 0.0)
    if nucleus < 1.0:
        mass = (share * (SCALE / tl.sum(share, axis=0))).to(tl.uint32)
        bound = tl.maximum((nucleus * SCALE).to(tl.int64), 1) - 1
        share = tl.where(key >= edge(key, mass, bound.to(tl.uint32), BITS + CODE_BITS), share, 0.0)
    mass = (share * (SCALE / tl.sum(share, axis=0))).to(tl.uint32)
    total = tl.sum(mass, axis=0).to(tl.int64)
    goal = tl.minimum(((uniform * (1 << 24)).to(tl.int64) * total) >> 24, total - 1)
    choice = find_token(at, mass, goal, CODE_BITS).to(tl.int64)
    choice = tl.where(choice < size, choice, 0)  # the choice is too large if logits are NaN
    if seen is not None:
        stop = choice == size - 1
        choice = tl.where(stop, 0, choice)
        tl.store(to, text)
        tl.store(to + BOOKS + 1, stop.to(tl.int64))
    tl.store(to + codebook + 1, choice)
    channel = tl.arange(0, triton.next_power_of_2(WIDTH))
    embedding = tl.load(embeddings + choice * WIDTH + channel, mask=channel < WIDTH, other=0.0)
    tl.store(embedded + row * WIDTH + channel, embedding, mask=channel < WIDTH)
