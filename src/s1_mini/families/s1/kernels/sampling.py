"""Sample one token for each row: penalty, nucleus, temperature and sampling in one kernel, without sorting.

Probabilities are integers in units of 1 / `SCALE`, so that their sums are the same in any order. Two bitwise searches
replace sorting. The first finds the token at which the cumulative sum of the largest probabilities first exceeds
`top_p`; the nucleus consists of the tokens with larger probabilities, but always includes the likeliest token. The
second finds the token at which the cumulative sum exceeds the random number. Among equal logits, the lower token ranks
first. Models with repetition-aware sampling have top-k instead of the penalty.
Shapes: B rows, V vocabulary, N penalised tokens, K codebooks, W window, D channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.s1.config import Ras
from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.ranking import MIN_TEMPERATURE, SCALE, edge, find_token, order, sample, to_integers

if HAS_TRITON:
    import triton
    import triton.language as tl

WINDOW = 16  # frames, about 0.74 s
MAX_VOCABULARY = 8192  # maximum number of tokens that fit in the registers of one program


class RepetitionWindow(NamedTuple):
    """The tokens that the repetition penalty applies to: a ring buffer of the last frames of every row.

    The mode `upstream` reproduces the original (decode_n_tokens at d3df505) with its three bugs. The semantic token is
    penalised only by the tokens of a single frame, 16 frames ago, because the original reads its buffer along the wrong
    axis. Code 0 is penalised during the first 16 frames, because unwritten parts of the buffer are zeros. The first
    frame is never recorded. The mode `fixed` penalises exactly the last 16 frames. In all methods, `count` [n] is the
    number of frames that each of the first n rows has generated.
    """

    history: Tensor  # int64 [B, W, K + 1], zeros before the first frame; repetition-aware sampling compares with all
    is_fixed: bool  # whether the mode is `fixed`

    @property
    def skipped(self) -> int:
        """Number of first frames that are not recorded."""
        return 0 if self.is_fixed else 1

    def semantic_tokens(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens [n, N] to penalise in the semantic token's logits, and which of them are valid [n, N]."""
        rows = len(count)
        if self.is_fixed:
            return self.history[:rows, :, 0], self.recorded_frames(count)
        recorded = count - self.skipped
        oldest = torch.where(recorded >= WINDOW, recorded % WINDOW, 0)
        tokens = self.history[torch.arange(rows, device=count.device), oldest]
        return tokens, (recorded >= 0).unsqueeze(1).expand_as(tokens)

    def codes(self, codebook: int, rows: int) -> Tensor:
        """Return the codes [rows, W] to penalise in `codebook`; `recorded_frames` says which of them are valid."""
        return self.history[:rows, :, codebook + 1]

    def recorded_frames(self, count: Tensor) -> Tensor:
        """Return the mask [n, W] of the frames whose codes are penalised, in all codebooks."""
        if self.is_fixed:
            return torch.arange(WINDOW, device=count.device) < count.unsqueeze(1)
        return (count >= self.skipped).unsqueeze(1).expand(-1, WINDOW)


class SamplingInputs(NamedTuple):
    """Inputs of sampling besides the logits; constant during a frame."""

    sampling: SamplingTensors
    num_frames: Tensor  # [B] number of frames generated so far
    window: RepetitionWindow  # has B rows or more
    ras: Ras | None = None  # its second draws have the last column of `uniforms`
    top_k: Tensor | None = None  # int64 [B], only with `ras`; 0: all tokens


class SemanticTokens(NamedTuple):
    """Ids of the tokens that the backbone predicts."""

    first: int  # the semantic token of code 0
    last: int  # the last semantic token
    end: int  # the token that ends the utterance
    restricted: bool  # whether logits exist only for the semantic tokens and `end`, not for all tokens
    num_codes: int  # size of the first codebook

    def are_semantic(self, tokens: Tensor) -> Tensor:
        return (tokens >= self.first) & (tokens <= self.last)


def sample_semantic(
    logits: Tensor, embeddings: Tensor, frames: Tensor, inputs: SamplingInputs, tokens: SemanticTokens
) -> Tensor:
    """Sample the semantic token of each row from `logits` [B, V], which may be overwritten.

    The result is stored in `frames`, int64 [B, K + 3]: the semantic token, the codes, whether the utterance ends (never
    in a row's first frame), and whether the logits were finite. With repetition-aware sampling, a full head only yields
    semantic tokens and the end. Returns the embeddings [B, D] of the first codes, from `embeddings` [codes, D].
    """
    if _fits_kernel(logits):
        return _sample_triton(logits, embeddings, frames, inputs, 0, tokens)
    count, books = inputs.num_frames, frames.shape[1] - 3
    frames[:, books + 2] = logits.abs().amax(-1) < math.inf  # false for NaN
    if tokens.restricted:
        logits[:, -1] = torch.where(count == 0, -math.inf, logits[:, -1])
    if inputs.ras is not None:
        choice = _sample_aware(logits, inputs, inputs.ras, tokens)
    else:
        past, valid = inputs.window.semantic_tokens(count)
        if tokens.restricted:
            valid = valid & tokens.are_semantic(past)
            past = past - tokens.first
        choice = _draw(_penalised(logits, past, valid, inputs), inputs, 0, *inputs.sampling[:2])
    if tokens.restricted:
        stop = choice == logits.shape[1] - 1
        choice = torch.where(stop, tokens.end, choice + tokens.first)
    else:
        stop = (choice == tokens.end) & (count > 0)  # the original ignores the end in frame 0
    frames[:, 0], frames[:, books + 1] = choice, stop
    frames[:, 1] = (choice - tokens.first).clamp(0, tokens.num_codes - 1)
    return F.embedding(frames[:, 1], embeddings)


def sample_code(logits: Tensor, embeddings: Tensor, frames: Tensor, inputs: SamplingInputs, codebook: int) -> Tensor:
    """Sample the code of `codebook` (1 … K - 1) of each row from `logits` [B, V] into `frames`.

    Returns the embeddings [B, D] of the codes, from `embeddings` [codes, D].
    """
    if _fits_kernel(logits):
        return _sample_triton(logits, embeddings, frames, inputs, codebook, None)
    if inputs.ras is None:
        past, valid = inputs.window.codes(codebook, len(logits)), inputs.window.recorded_frames(inputs.num_frames)
        logits = _penalised(logits, past, valid, inputs)
    frames[:, codebook + 1] = _draw(logits, inputs, codebook, *inputs.sampling[:2])
    return F.embedding(frames[:, codebook + 1], embeddings)


def penalise(logits: Tensor, tokens: Tensor, valid: Tensor, penalty: Tensor) -> Tensor:
    """Return logits with a penalty for `tokens` [B, N] where `valid` [B, N]; repeated tokens are penalised only once.

    Negative logits are multiplied by the row's `penalty` [B], other logits are divided by it (Keskar et al. 2019,
    CTRL). Tokens without a logit are ignored, because they cannot be sampled.
    """
    valid = valid & (tokens >= 0) & (tokens < logits.shape[1])
    tokens = torch.where(valid, tokens, 0)
    hit = torch.zeros_like(logits).scatter_reduce(1, tokens, valid.to(logits.dtype), reduce="amax") > 0
    penalty = penalty.unsqueeze(1)
    return torch.where(hit, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def probabilities(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor | None = None) -> Tensor:
    """Return the probability of every token [B, V].

    S1 determines the nucleus before it applies the temperature. The token at which the cumulative sum of the
    largest probabilities first exceeds `top_p` [B] is excluded, with all that follow; the likeliest token is always
    included. Tokens after the `top_k` [B] likeliest are also excluded, unless it is 0.
    """
    logits = logits.float()
    ranked, tokens = logits.sort(dim=-1, descending=True, stable=True)
    outside = to_integers(ranked.softmax(-1)).cumsum(-1) > to_integers(top_p).unsqueeze(1)
    if top_k is not None:
        rank = torch.arange(logits.shape[1], device=logits.device)
        outside |= (rank >= top_k.unsqueeze(1)) & (top_k > 0).unsqueeze(1)
    outside[:, 0] = False
    outside = torch.empty_like(outside).scatter_(1, tokens, outside)
    temperature = temperature.clamp_min(MIN_TEMPERATURE).unsqueeze(1)
    return ((logits - ranked[:, :1]) / temperature).masked_fill(outside, -math.inf).softmax(-1)


def _penalised(logits: Tensor, tokens: Tensor, valid: Tensor, inputs: SamplingInputs) -> Tensor:
    """Penalise `tokens` [B, N]. Penalised logits are rounded to the dtype of `logits`."""
    return penalise(logits.float(), tokens, valid, inputs.sampling.repetition_penalty).to(logits.dtype)


def _draw(logits: Tensor, inputs: SamplingInputs, column: int, temperature: Tensor, top_p: Tensor) -> Tensor:
    """Sample with the random number in `column` of each row's frame."""
    rows = torch.arange(len(logits), device=logits.device)
    uniform = inputs.sampling.uniforms[rows, inputs.num_frames, column]
    return sample(probabilities(logits, temperature, top_p, inputs.top_k), uniform)


def _sample_aware(logits: Tensor, inputs: SamplingInputs, ras: Ras, tokens: SemanticTokens) -> Tensor:
    """Sample semantic tokens; those of the last frames are drawn again, except in greedy rows.

    Returns columns of `logits`.
    """
    sampling, rows = inputs.sampling, len(logits)
    if not tokens.restricted:
        token = torch.arange(logits.shape[1], device=logits.device)
        is_end = (token == tokens.end) & (inputs.num_frames > 0).unsqueeze(1)
        logits = logits.masked_fill(~(is_end | tokens.are_semantic(token)), -math.inf)
    choice = _draw(logits, inputs, 0, sampling.temperature, sampling.top_p)
    other = _draw(logits, inputs, -1, *(torch.full_like(sampling.top_p, each) for each in (ras.temperature, ras.top_p)))
    token = choice + tokens.first if tokens.restricted else choice
    repeats = (inputs.window.history[:rows, :, 0] == token.unsqueeze(1)).any(1) & tokens.are_semantic(token)
    return torch.where(repeats & (sampling.temperature > MIN_TEMPERATURE), other, choice)


def _fits_kernel(logits: Tensor) -> bool:
    return runs_triton(logits) and logits.shape[1] <= MAX_VOCABULARY


def _sample_triton(
    logits: Tensor,
    embeddings: Tensor,
    frames: Tensor,
    inputs: SamplingInputs,
    codebook: int,
    tokens: SemanticTokens | None,
) -> Tensor:
    rows, size = logits.shape
    width = embeddings.shape[1]
    embedded = torch.empty(rows, width, dtype=embeddings.dtype, device=embeddings.device)
    block = max(32, triton.next_power_of_2(size))
    window = inputs.window
    _sample_kernel[(rows,)](
        logits,
        window.history,
        inputs.num_frames,
        inputs.sampling.repetition_penalty,
        inputs.sampling.temperature,
        inputs.sampling.top_p,
        inputs.sampling.uniforms,
        inputs.top_k,
        *(inputs.ras[1:] if inputs.ras else (None, None)),
        embeddings,
        frames,
        embedded,
        codebook,
        size,
        logits.stride(0),
        inputs.sampling.uniforms.stride(0),
        inputs.sampling.uniforms.stride(1),
        window.skipped,
        *(tokens[:3] if tokens else (0, 0, 0)),
        tokens.num_codes if tokens else 0,
        MIN_TEMPERATURE,
        SCALE,
        block,
        block.bit_length() - 1,
        width,
        frames.shape[1] - 3,
        window.history.shape[1],
        FIXED=window.is_fixed,
        SEMANTIC=tokens is not None,
        RESTRICTED=tokens is not None and tokens.restricted,
        **launch(logits),
        num_warps=max(1, block // 1024),
    )
    return embedded


@jit
def _sample_kernel(
    logits,
    history,
    count,
    penalty,
    temperature,
    top_p,
    uniforms,
    top_k,
    ras_temperature,
    ras_top_p,
    embeddings,
    frames,
    embedded,
    codebook,
    size,
    logits_stride,
    uniforms_stride,
    uniforms_frame_stride,
    skipped,
    first_token,
    last_token,
    end_token,
    num_codes,
    min_temperature,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKEN_BITS: tl.constexpr,
    WIDTH: tl.constexpr,
    BOOKS: tl.constexpr,
    WINDOW: tl.constexpr,
    FIXED: tl.constexpr,
    SEMANTIC: tl.constexpr,
    RESTRICTED: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    # The next loads may come before `wait_for_last`, because no kernel of this frame writes these data.
    frame = tl.load(count + row)
    heat = tl.load(temperature + row)
    nucleus = tl.load(top_p + row)
    random = uniforms + row * uniforms_stride + frame * uniforms_frame_stride
    uniform = tl.load(random + codebook)
    past = history + row * WINDOW * (BOOKS + 1)
    offset = first_token if RESTRICTED else 0
    if top_k is None:
        most = None
        factor = tl.load(penalty + row)
        inverse_factor = 1.0 / factor
        hit = _repeated(
            past, frame, skipped, codebook, first_token, last_token, BLOCK, BOOKS, WINDOW, FIXED, SEMANTIC, RESTRICTED
        )
    else:
        most = tl.load(top_k + row)
        most = tl.where(most > 0, most, BLOCK)
        turn = tl.arange(0, triton.next_power_of_2(WINDOW))
        recent = tl.load(past + turn * (BOOKS + 1), mask=turn < WINDOW, other=0)
        recent = tl.where((recent >= first_token) & (recent <= last_token), recent - offset, -1)
    wait_for_last(EARLY)
    logit = tl.load(logits + row * logits_stride + at, mask=inside, other=float("-inf"))
    original = logit.dtype
    logit = logit.to(tl.float32)
    to = frames + row * (BOOKS + 3)
    if SEMANTIC:
        not_finite = tl.where(inside & ~(tl.abs(logit) < float("inf")), 1, 0)  # infinite or NaN
        tl.store(to + BOOKS + 2, (tl.sum(not_finite, axis=0) == 0).to(tl.int64))
        if RESTRICTED:
            logit = tl.where((at == size - 1) & (frame == 0), float("-inf"), logit)
        elif top_k is not None:
            can_end = (at == end_token) & (frame > 0)
            logit = tl.where(can_end | ((at >= first_token) & (at <= last_token)), logit, float("-inf"))
    if top_k is None:
        logit = tl.where(hit, tl.where(logit < 0, logit * factor, logit * inverse_factor), logit)
    logit = tl.where(logit == 0.0, 0.0, logit).to(original)  # turns -0 into 0
    VALUE_BITS: tl.constexpr = original.primitive_bitwidth
    key = tl.where(inside, (order(logit, VALUE_BITS) << TOKEN_BITS) + (BLOCK - 1 - at).to(tl.uint32), 0)
    logit = logit.to(tl.float32)
    logit -= tl.max(logit, axis=0)
    mass = tl.exp(logit)
    mass = (mass * (SCALE / tl.sum(mass, axis=0))).to(tl.uint32)
    heat = tl.maximum(heat, min_temperature)
    choice = _draw_triton(at, size, key, logit, mass, nucleus, most, heat, uniform, SCALE, TOKEN_BITS, VALUE_BITS)
    if SEMANTIC:
        if top_k is not None:
            if (tl.sum(tl.where(recent == choice, 1, 0), axis=0) > 0) & (heat > min_temperature):
                other = tl.load(random + BOOKS)
                choice = _draw_triton(
                    at, size, key, logit, mass, ras_top_p, most, ras_temperature, other, SCALE, TOKEN_BITS, VALUE_BITS
                )
        if RESTRICTED:
            stop = choice == size - 1
            choice = tl.where(stop, end_token, choice + first_token)
        else:
            stop = (choice == end_token) & (frame > 0)
        tl.store(to, choice)
        tl.store(to + BOOKS + 1, stop.to(tl.int64))
        choice = tl.minimum(tl.maximum(choice - first_token, 0), num_codes - 1)
    tl.store(to + codebook + 1, choice)
    channel = tl.arange(0, triton.next_power_of_2(WIDTH))
    value = tl.load(embeddings + choice * WIDTH + channel, mask=channel < WIDTH, other=0.0)
    tl.store(embedded + row * WIDTH + channel, value, mask=channel < WIDTH)


@jit
def _repeated(
    past,
    frame,
    skipped,
    codebook,
    first_token,
    last_token,
    BLOCK: tl.constexpr,
    BOOKS: tl.constexpr,
    WINDOW: tl.constexpr,
    FIXED: tl.constexpr,
    SEMANTIC: tl.constexpr,
    RESTRICTED: tl.constexpr,
):
    """Return which logits [BLOCK] a row penalises."""
    group = tl.arange(0, BLOCK // 32)
    hits = tl.zeros([BLOCK // 32], tl.uint32)  # one bit per token
    # The original's penalty of semantic tokens reads all tokens of one frame; other penalties read one token per frame.
    ONE_FRAME: tl.constexpr = SEMANTIC and not FIXED
    if ONE_FRAME:
        recorded = frame - skipped
        past += tl.where(recorded >= WINDOW, recorded % WINDOW, 0) * (BOOKS + 1)
    for index in tl.static_range(BOOKS + 1 if ONE_FRAME else WINDOW):
        if ONE_FRAME:
            token = tl.load(past + index)
        else:
            token = tl.load(past + index * (BOOKS + 1) + (0 if SEMANTIC else codebook + 1))
        is_valid = (frame > index) if FIXED else (frame >= skipped)
        if RESTRICTED:
            is_valid = is_valid & (token >= first_token) & (token <= last_token)
            token -= first_token
        token = tl.where(is_valid, token, -1).to(tl.int32)
        hits |= tl.where(group == token >> 5, tl.cast(1, tl.uint32) << (token & 31), 0)
    return tl.reshape((hits[:, None] >> tl.arange(0, 32)[None, :]) & 1, [BLOCK]) != 0


@jit
def _draw_triton(
    at,
    size,
    key,
    logit,
    mass,
    nucleus,
    most,
    temperature,
    uniform,
    SCALE: tl.constexpr,
    TOKEN_BITS: tl.constexpr,
    VALUE_BITS: tl.constexpr,
):
    """Return a token of the nucleus; `mass` is the share of each token without temperature."""
    edge_key = edge(key, mass, tl.cast(nucleus * SCALE, tl.uint32), VALUE_BITS + TOKEN_BITS, most)
    kept = (key > edge_key) | (key == tl.max(key, axis=0))  # the likeliest is always included
    share = tl.where(kept, tl.exp(logit * (1.0 / temperature)), 0.0)
    share = (share * (SCALE / tl.sum(share, axis=0))).to(tl.uint32)
    total = tl.sum(share, axis=0).to(tl.int64)
    goal = tl.minimum(((uniform * (1 << 24)).to(tl.int64) * total) >> 24, total - 1)
    choice = find_token(at, share, goal, TOKEN_BITS).to(tl.int64)
    return tl.where(choice < size, choice, 0)  # the choice is too large if logits are NaN
