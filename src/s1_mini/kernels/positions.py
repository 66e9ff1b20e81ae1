"""The first and last operations of a frame: embed the tokens of a position, and store the new frame for the next step.

Shapes: B rows, K codebooks, D channels, V codes of a codebook, W frames of the repetition window, S positions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, follows_early, jit, launch, runs_triton, wait_for_last

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 256


class Embedding(NamedTuple):
    """The tables that embed the tokens of a position."""

    token_table: Tensor  # [vocabulary, D]
    code_table: Tensor  # [K V + other rows, D]
    semantic: tuple[int, int]  # first and last semantic token; only semantic tokens have codes
    scaled: bool = False  # whether the sum of the K + 1 embeddings is divided by √(K + 1)
    other_rows: int = 0  # unused rows at the end of `code_table`

    def book_size(self, books: int) -> int:
        return (len(self.code_table) - self.other_rows) // books


def embed_positions(
    tokens: Tensor, position: Tensor, active: Tensor | None, padding: int, embedding: Embedding, rope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Embed `tokens` [B, K + 1], each a semantic token and its codes, at `position` [B] of their sequences.

    Returns the embeddings [B, D], the cache positions [B] for their keys and values, and the rows [B, R, 2] of `rope`
    [S, R, 2] for their positions. Idle rows get the cache position `padding`. A row is idle if it is not `active` [B],
    or, without `active`, if its position is negative.
    """
    if runs_triton(embedding.token_table):
        return _embed_triton(tokens, position, active, padding, embedding, rope)
    stored = position >= 0 if active is None else active
    return embed(tokens, embedding), torch.where(stored, position, padding), rope[position.clamp_min(0)]


def embed(tokens: Tensor, embedding: Embedding) -> Tensor:
    """Return the embeddings [..., D] of tokens [..., K + 1], each a semantic token and its codes."""
    first, books = tokens[..., 0], tokens.shape[-1] - 1
    offsets = torch.arange(books, device=tokens.device) * embedding.book_size(books)
    x = F.embedding(first, embedding.token_table)
    with_codes = x + F.embedding(tokens[..., 1:] + offsets, embedding.code_table).sum(-2)
    if embedding.scaled:
        with_codes = with_codes / math.sqrt(books + 1)
    is_semantic = (first >= embedding.semantic[0]) & (first <= embedding.semantic[1])
    return torch.where(is_semantic.unsqueeze(-1), with_codes, x)


def store_frame(
    frame: Tensor,
    history: Tensor | None,
    tokens: Tensor,
    position: Tensor,
    count: Tensor,
    active: Tensor,
    skipped: int = 0,
    seen: Tensor | None = None,
) -> None:
    """Store `frame` [B, K + 1 or more] in the state of the first B rows, in place; skip rows not in `active` [rows].

    `history` [rows, W, K + 1] is a ring buffer of the last W frames; it leaves out the first `skipped` frames of each
    row. `tokens` [rows, K + 1] are the next step's input, at `position` [rows]. `count` [rows] is the number of frames
    so far. `seen` [rows, V] uint8 is set to 1 for the first code of each frame.
    """
    if runs_triton(frame):
        _store_frame_triton(frame, history, tokens, position, count, active, skipped, seen)
        return
    frame = frame[:, : tokens.shape[1]]
    rows = len(frame)
    row, steps = torch.arange(rows, device=frame.device), active[:rows]
    if history is not None:
        ring = (count[:rows] - skipped) % history.shape[1]
        recorded = steps & (count[:rows] >= skipped)
        history[row, ring] = torch.where(recorded.unsqueeze(1), frame, history[row, ring])
    if seen is not None:
        seen[row, frame[:, 1]] |= steps
    tokens[:rows] = torch.where(steps.unsqueeze(1), frame, tokens[:rows])
    position[:rows].add_(steps)
    count[:rows].add_(steps)


def _embed_triton(
    tokens: Tensor, position: Tensor, active: Tensor | None, padding: int, embedding: Embedding, rope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, books = len(tokens), tokens.shape[1] - 1
    size, rope_size = embedding.token_table.shape[1], rope[0].numel()
    x = torch.empty(rows, size, dtype=embedding.token_table.dtype, device=tokens.device)
    target = torch.empty_like(position)
    out_rope = torch.empty(rows, *rope.shape[1:], dtype=rope.dtype, device=rope.device)
    # The first kernel of a frame is never launched early; see `backend`.
    _embed_kernel[(rows, triton.cdiv(size, BLOCK))](
        tokens,
        position,
        position if active is None else active,
        embedding.token_table,
        embedding.code_table,
        rope,
        x,
        target,
        out_rope,
        padding,
        *embedding.semantic,
        math.sqrt(books + 1) if embedding.scaled else 1.0,
        embedding.book_size(books),
        tokens.stride(0),
        size,
        rope_size,
        books,
        BLOCK,
        triton.next_power_of_2(rope_size),
        ACTIVE=active is not None,
        EARLY=follows_early(tokens.device),
        num_warps=2,
    )
    return x, target, out_rope


@jit
def _embed_kernel(
    tokens,
    position,
    active,
    token_table,
    code_table,
    rope,
    out,
    target,
    out_rope,
    padding,
    first,
    last,
    scale,
    book_size,
    stride,
    size,
    rope_size,
    BOOKS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROPE: tl.constexpr,
    ACTIVE: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    wait_for_last(EARLY)
    token = tl.load(tokens + row * stride)
    x = tl.load(token_table + token * size + at, mask=inside, other=0.0)
    if tl.program_id(1) == 0:
        index = tl.load(position + row)
        is_stored = tl.load(active + row) != 0 if ACTIVE else index >= 0
        tl.store(target + row, tl.where(is_stored, index, padding))
        pair = tl.arange(0, ROPE)
        angles = tl.load(rope + tl.maximum(index, 0) * rope_size + pair, mask=pair < rope_size, other=0.0)
        tl.store(out_rope + row * rope_size + pair, angles, mask=pair < rope_size)
    if (token >= first) & (token <= last):
        total = tl.zeros([BLOCK], tl.float32)
        for book in tl.static_range(BOOKS):
            code = tl.load(tokens + row * stride + 1 + book) + book * book_size
            total += tl.load(code_table + code * size + at, mask=inside, other=0.0).to(tl.float32)
        summed = (x.to(tl.float32) + total.to(x.dtype).to(tl.float32)).to(x.dtype)
        x = (summed.to(tl.float32) / scale).to(x.dtype)
    tl.store(out + row * size + at, x, mask=inside)


def _store_frame_triton(
    frame: Tensor,
    history: Tensor | None,
    tokens: Tensor,
    position: Tensor,
    count: Tensor,
    active: Tensor,
    skipped: int,
    seen: Tensor | None,
) -> None:
    rows, width = len(frame), tokens.shape[1]
    _store_kernel[(rows,)](
        frame,
        history,
        tokens,
        position,
        count,
        active,
        seen,
        skipped,
        *frame.stride(),
        1 if history is None else history.shape[1],
        0 if seen is None else seen.shape[1],
        width,
        triton.next_power_of_2(width),
        **launch(frame),
        num_warps=1,
    )


@jit
def _store_kernel(
    frame,
    history,
    tokens,
    position,
    count,
    active,
    seen,
    skipped,
    row_stride,
    stride,
    window,
    num_codes,
    width,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    wait_for_last(EARLY)
    frames = tl.load(count + row)
    if tl.load(active + row) != 0:
        value = tl.load(frame + row * row_stride + at * stride, mask=inside, other=0)
        if history is not None:
            if frames >= skipped:
                ring = (frames - skipped) % window
                tl.store(history + (row * window + ring) * width + at, value, mask=inside)
        if seen is not None:
            tl.store(seen + row * num_codes + tl.load(frame + row * row_stride + stride), 1)
        tl.store(tokens + row * width + at, value, mask=inside)
        tl.store(position + row, tl.load(position + row) + 1)
        tl.store(count + row, frames + 1)
