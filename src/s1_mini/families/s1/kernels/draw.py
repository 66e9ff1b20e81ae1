"""The tokens of a frame drawn, one of each row: penalty, nucleus, temperature and draw in one kernel, without a sort.

Probabilities are taken as whole numbers, of which there are `WHOLE`: their sums are the same in any order. Where the
nucleus ends is the logit at and above which they sum up to more than its share, and what is drawn is the token before
which they do not; both are found bit by bit. Among equal logits the lower token ranks first.
Shapes: B rows, V vocabulary, N penalised tokens, K codebooks, W window, D channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.ranking import edge, order

if HAS_TRITON:
    import triton
    import triton.language as tl

WINDOW = 16  # frames, about 0.74 s
WHOLE = 1 << 31
MIN_TEMPERATURE = 1e-5  # upstream's floor; at it the draw is the arg max
MAX_VOCABULARY = 8192  # that one program holds


class RepetitionWindow(NamedTuple):
    """The tokens that the repetition penalty applies to: a ring of the last frames of every row.

    `upstream` reproduces the original (decode_n_tokens at d3df505) with its two faults: the main token is penalised
    only by the token exactly 16 frames ago (a column is read instead of a row), and code 0 is penalised during the
    first 16 frames (unwritten history reads as zeros). The first frame is never remembered. `fixed` penalises the
    last 16 frames and nothing else. `count` [n] is always the number of frames that each of the first n rows has
    made.
    """

    history: Tensor  # int64 [B, W, K + 1], zeros before the first frame
    as_meant: bool  # `fixed`

    @property
    def skipped(self) -> int:
        """Number of frames at the start that are not recorded."""
        return 0 if self.as_meant else 1

    def main_tokens(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids to penalise when the main token is drawn, and which of them count: [n, N] each."""
        rows = len(count)
        if self.as_meant:
            return self.history[:rows, :, 0], self.counted(count)
        recorded = count - self.skipped
        oldest = torch.where(recorded >= WINDOW, recorded % WINDOW, 0)
        tokens = self.history[torch.arange(rows, device=count.device), oldest]
        return tokens, (recorded >= 0).unsqueeze(1).expand_as(tokens)

    def codes(self, codebook: int, rows: int) -> Tensor:
        """Return the codes [rows, W] to penalise when `codebook` is drawn, where `counted` says so."""
        return self.history[:rows, :, codebook + 1]

    def counted(self, count: Tensor) -> Tensor:
        """Return which of the codes count, the same for all codebooks: [n, W]."""
        if self.as_meant:
            return torch.arange(WINDOW, device=count.device) < count.unsqueeze(1)
        return (count >= self.skipped).unsqueeze(1).expand(-1, WINDOW)


class SamplingTensors(NamedTuple):
    """Sampling parameters of B rows, on the device."""

    temperature: Tensor  # [B]
    top_p: Tensor  # [B]
    repetition_penalty: Tensor  # [B]
    uniforms: Tensor  # [B, frames, K] in [0, 1)


class SamplingInputs(NamedTuple):
    """What sampling depends on besides logits, constant within a frame."""

    sampling: SamplingTensors
    num_frames: Tensor  # [B] that were made
    window: RepetitionWindow  # of the first B rows, or more


class MainTokens(NamedTuple):
    """The possible main tokens."""

    first: int  # semantic token, that of code 0
    last: int
    end: int
    restricted: bool  # the logits are those of the semantic tokens and the end; else of all tokens
    num_codes: int  # of the first codebook


def sample_semantic(
    logits: Tensor, embeddings: Tensor, made: Tensor, inputs: SamplingInputs, tokens: MainTokens
) -> Tensor:
    """Draw the main token of each row from `logits` [B, V], which it may change.

    `made`, int64 [B, K + 3], is what is drawn into: main token, codes, whether it is the end (a row's first frame never
    is), whether the logits were finite. Gives the first code's row of `embeddings` [codes, D], [B, D].
    """
    if _can_draw(logits):
        return _draw_triton(logits, embeddings, made, inputs, 0, tokens)
    count, books = inputs.num_frames, made.shape[1] - 3
    made[:, books + 2] = logits.abs().amax(-1) < math.inf  # not so of NaN
    past, counts = inputs.window.main_tokens(count)
    if tokens.restricted:
        counts = counts & (past >= tokens.first) & (past <= tokens.last)
        past = past - tokens.first
        logits[:, -1] = torch.where(count == 0, -math.inf, logits[:, -1])
    choice = _draw_penalised(logits, past, counts, inputs, 0)
    if tokens.restricted:
        stop = choice == logits.shape[1] - 1
        choice = torch.where(stop, tokens.end, choice + tokens.first)
    else:
        stop = (choice == tokens.end) & (count > 0)  # upstream does not look for the end in frame 0
    made[:, 0], made[:, books + 1] = choice, stop
    made[:, 1] = (choice - tokens.first).clamp(0, tokens.num_codes - 1)
    return F.embedding(made[:, 1], embeddings)


def sample_code(logits: Tensor, embeddings: Tensor, made: Tensor, inputs: SamplingInputs, codebook: int) -> Tensor:
    """Draw the code of `codebook` (1 … K - 1) of each row from `logits` [B, V] into `made`.

    Gives its row of `embeddings`, [B, D].
    """
    if _can_draw(logits):
        return _draw_triton(logits, embeddings, made, inputs, codebook, None)
    past, counts = inputs.window.codes(codebook, len(logits)), inputs.window.counted(inputs.num_frames)
    made[:, codebook + 1] = _draw_penalised(logits, past, counts, inputs, codebook)
    return F.embedding(made[:, codebook + 1], embeddings)


def penalise(logits: Tensor, tokens: Tensor, valid: Tensor, penalty: Tensor) -> Tensor:
    """Penalise `tokens` [B, N] where `valid` [B, N], each once, however often it occurs.

    Negative logits are multiplied by the row's `penalty` [B], others divided (Keskar et al. 2019, CTRL). Tokens that
    have no logit cannot be drawn, so they need no penalty.
    """
    valid = valid & (tokens >= 0) & (tokens < logits.shape[1])
    tokens = torch.where(valid, tokens, 0)
    hit = torch.zeros_like(logits).scatter_reduce(1, tokens, valid.to(logits.dtype), reduce="amax") > 0
    penalty = penalty.unsqueeze(1)
    return torch.where(hit, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def probabilities(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """Return the probability of every token [B, V].

    S1's nucleus: on logits before temperature, the token that crosses `top_p` [B] is out, the likeliest is always in.
    """
    logits = logits.float()
    ranked, tokens = logits.sort(dim=-1, descending=True, stable=True)
    outside = _whole(ranked.softmax(-1)).cumsum(-1) > _whole(top_p).unsqueeze(1)
    outside[:, 0] = False
    outside = torch.empty_like(outside).scatter_(1, tokens, outside)
    heat = temperature.clamp_min(MIN_TEMPERATURE).unsqueeze(1)
    return ((logits - ranked[:, :1]) / heat).masked_fill(outside, -math.inf).softmax(-1)


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Draw a token of each row [B] of `probabilities` [B, V] by inverting their cumulative sum at `uniform` [B]."""
    cumulative = _whole(probabilities).cumsum(-1)
    total = cumulative[:, -1]
    goal = (((uniform * (1 << 24)).long() * total) >> 24).minimum(total - 1)  # `uniforms` have 24 bits
    return (cumulative <= goal.unsqueeze(1)).sum(-1).clamp_max(probabilities.shape[1] - 1)  # a row of NaN has none


def _whole(share: Tensor) -> Tensor:
    return (share * WHOLE).long()


def _draw_penalised(logits: Tensor, tokens: Tensor, valid: Tensor, inputs: SamplingInputs, number: int) -> Tensor:
    """Draw by each row's `number`th uniform; penalised logits are rounded to their dtype."""
    logits = penalise(logits.float(), tokens, valid, inputs.sampling.repetition_penalty).to(logits.dtype)
    rows = torch.arange(len(logits), device=logits.device)
    uniform = inputs.sampling.uniforms[rows, inputs.num_frames, number]
    return draw(probabilities(logits, inputs.sampling.temperature, inputs.sampling.top_p), uniform)


def _can_draw(logits: Tensor) -> bool:
    return runs_triton(logits) and logits.shape[1] <= MAX_VOCABULARY


def _draw_triton(
    logits: Tensor, embeddings: Tensor, made: Tensor, inputs: SamplingInputs, number: int, tokens: MainTokens | None
) -> Tensor:
    rows, size = logits.shape
    size_of_row = embeddings.shape[1]
    embedded = torch.empty(rows, size_of_row, dtype=embeddings.dtype, device=embeddings.device)
    block = max(32, triton.next_power_of_2(size))
    window = inputs.window
    _draw_kernel[(rows,)](
        logits,
        window.history,
        inputs.num_frames,
        inputs.sampling.repetition_penalty,
        inputs.sampling.temperature,
        inputs.sampling.top_p,
        inputs.sampling.uniforms,
        embeddings,
        made,
        embedded,
        number,
        size,
        logits.stride(0),
        inputs.sampling.uniforms.stride(0),
        inputs.sampling.uniforms.stride(1),
        window.skipped,
        *(tokens[:3] if tokens else (0, 0, 0)),
        tokens.num_codes if tokens else 0,
        MIN_TEMPERATURE,
        WHOLE,
        block,
        block.bit_length() - 1,
        size_of_row,
        made.shape[1] - 3,
        WINDOW,
        AS_MEANT=window.as_meant,
        MAIN=tokens is not None,
        RESTRICTED=tokens is not None and tokens.restricted,
        **launch(logits),
        num_warps=max(1, block // 1024),
    )
    return embedded


@jit
def _place(at, mass, goal, BITS: tl.constexpr):
    """The index whose preceding mass does not exceed the goal, while the mass up to and including it does."""
    found = tl.sum(tl.zeros_like(at), axis=0)
    for bit in range(BITS):
        later = found | (1 << (BITS - 1 - bit))
        fits = tl.sum(tl.where(at < later, mass, 0), axis=0) <= goal
        found = tl.where(fits, later, found)
    return found


@jit
def _draw_kernel(
    logits,
    history,
    count,
    penalty,
    temperature,
    top_p,
    uniforms,
    embeddings,
    made,
    embedded,
    number,
    size,
    logits_stride,
    uniforms_stride,
    uniforms_frame_stride,
    skipped,
    first_token,
    last_token,
    end_token,
    num_codes,
    least_heat,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACE_BITS: tl.constexpr,
    WIDTH: tl.constexpr,
    BOOKS: tl.constexpr,
    WINDOW: tl.constexpr,
    AS_MEANT: tl.constexpr,
    MAIN: tl.constexpr,
    RESTRICTED: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    # Data that no kernel of this frame writes can be read before the previous kernel ends.
    frame = tl.load(count + row)
    strength = tl.load(penalty + row)
    weakness = 1.0 / strength
    coldness = 1.0 / tl.maximum(tl.load(temperature + row), least_heat)
    share_of_nucleus = tl.load(top_p + row)
    uniform = tl.load(uniforms + row * uniforms_stride + frame * uniforms_frame_stride + number)
    past = history + row * WINDOW * (BOOKS + 1)
    group = tl.arange(0, BLOCK // 32)
    hits = tl.zeros([BLOCK // 32], tl.uint32)  # a bit for each token
    # Upstream's main-token penalty reads all columns of one frame; every other penalty reads one column of all frames.
    ONE_FRAME: tl.constexpr = MAIN and not AS_MEANT
    if ONE_FRAME:
        recorded = frame - skipped
        past += tl.where(recorded >= WINDOW, recorded % WINDOW, 0) * (BOOKS + 1)
    for place in tl.static_range(BOOKS + 1 if ONE_FRAME else WINDOW):
        if ONE_FRAME:
            token = tl.load(past + place)
        else:
            token = tl.load(past + place * (BOOKS + 1) + (0 if MAIN else number + 1))
        counts = (frame > place) if AS_MEANT else (frame >= skipped)
        if RESTRICTED:
            counts = counts & (token >= first_token) & (token <= last_token)
            token -= first_token
        token = tl.where(counts, token, -1).to(tl.int32)
        hits |= tl.where(group == token >> 5, tl.cast(1, tl.uint32) << (token & 31), 0)
    hit = tl.reshape((hits[:, None] >> tl.arange(0, 32)[None, :]) & 1, [BLOCK]) != 0
    wait_for_last(EARLY)
    logit = tl.load(logits + row * logits_stride + at, mask=inside, other=float("-inf"))
    kind = logit.dtype
    logit = logit.to(tl.float32)
    to = made + row * (BOOKS + 3)
    if MAIN:
        endless = tl.where(inside & ~(tl.abs(logit) < float("inf")), 1, 0)  # or no number
        tl.store(to + BOOKS + 2, (tl.sum(endless, axis=0) == 0).to(tl.int64))
        if RESTRICTED:
            logit = tl.where((at == size - 1) & (frame == 0), float("-inf"), logit)
    logit = tl.where(hit, tl.where(logit < 0, logit * strength, logit * weakness), logit)
    logit = tl.where(logit == 0.0, 0.0, logit).to(kind)  # one zero, not two
    VALUE_BITS: tl.constexpr = kind.primitive_bitwidth
    key = tl.where(inside, (order(logit, VALUE_BITS) << PLACE_BITS) + (BLOCK - 1 - at).to(tl.uint32), 0)
    logit = logit.to(tl.float32)
    logit -= tl.max(logit, axis=0)
    mass = tl.exp(logit)
    mass = (mass * (WHOLE / tl.sum(mass, axis=0))).to(tl.uint32)
    least_key = edge(key, mass, (share_of_nucleus * WHOLE).to(tl.uint32), VALUE_BITS + PLACE_BITS)
    kept = (key > least_key) | (key == tl.max(key, axis=0))  # the likeliest is always in
    share = tl.where(kept, tl.exp(logit * coldness), 0.0)
    share = (share * (WHOLE / tl.sum(share, axis=0))).to(tl.uint32)
    total = tl.sum(share, axis=0).to(tl.int64)
    goal = tl.minimum(((uniform * (1 << 24)).to(tl.int64) * total) >> 24, total - 1)
    choice = _place(at, share, goal, PLACE_BITS).to(tl.int64)
    choice = tl.where(choice < size, choice, 0)  # a row of NaN
    if MAIN:
        if RESTRICTED:
            stop = choice == size - 1
            choice = tl.where(stop, end_token, choice + first_token)
        else:
            stop = (choice == end_token) & (frame > 0)
        tl.store(to, choice)
        tl.store(to + BOOKS + 1, stop.to(tl.int64))
        choice = tl.minimum(tl.maximum(choice - first_token, 0), num_codes - 1)
    tl.store(to + number + 1, choice)
    channel = tl.arange(0, triton.next_power_of_2(WIDTH))
    value = tl.load(embeddings + choice * WIDTH + channel, mask=channel < WIDTH, other=0.0)
    tl.store(embedded + row * WIDTH + channel, value, mask=channel < WIDTH)
