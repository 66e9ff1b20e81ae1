"""Both ends of a frame: embedding a column of tokens, and storing a finished frame for the next step.

Shapes: B rows, K codebooks, D channels, V codes of a book, W frames of the repetition window.
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
    """The tables that embed a column."""

    main: Tensor  # [tokens, D]
    codes: Tensor  # [K V, D]
    semantic: tuple[int, int]  # first and last token with which codes count
    scaled: bool  # whether the sum of the K + 1 is divided by its root


def enter_columns(
    columns: Tensor, position: Tensor, active: Tensor | None, spare: int, embedding: Embedding, rope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Embed `columns` [B, K + 1], main token before codes, that come to stand at `position` [B] of their sequences.

    Gives the embedding [B, D], the cache's column [B] for what they leave there, and their rows [B, R, 2] of `rope`
    [S, R, 2]. Where `active` [B] is false, or without it a position below 0, that is the `spare` column.
    """
    if runs_triton(embedding.main):
        return _enter_triton(columns, position, active, spare, embedding, rope)
    goes = position >= 0 if active is None else active
    return embed(columns, *embedding), torch.where(goes, position, spare), rope[position.clamp_min(0)]


def embed(columns: Tensor, main: Tensor, codes: Tensor, semantic: tuple[int, int], scaled: bool) -> Tensor:
    """Embed columns [..., K + 1], main token before codes: [..., D]."""
    tokens, books = columns[..., 0], columns.shape[-1] - 1
    offsets = torch.arange(books, device=columns.device) * (len(codes) // books)
    x = F.embedding(tokens, main)
    spoken = x + F.embedding(columns[..., 1:] + offsets, codes).sum(-2)
    if scaled:
        spoken = spoken / math.sqrt(books + 1)
    says = (tokens >= semantic[0]) & (tokens <= semantic[1])
    return torch.where(says.unsqueeze(-1), spoken, x)


def take_frame(
    frame: Tensor, history: Tensor, column: Tensor, position: Tensor, count: Tensor, active: Tensor, skipped: int
) -> None:
    """Store `frame` [B, K + 1 or more] for the active ones of the first B rows; the other tensors change in place.

    `history` [rows, W, K + 1] is a ring of the last frames but the first `skipped`, `column` [rows, K + 1] what a row
    reads next, at `position` [rows]; `count` [rows] is how many frames it has made; `active` [rows] bool.
    """
    if runs_triton(frame):
        _take_frame_triton(frame, history, column, position, count, active, skipped)
        return
    frame = frame[:, : column.shape[1]]
    rows = len(frame)
    at, moves = torch.arange(rows, device=frame.device), active[:rows]
    ring = (count[:rows] - skipped) % history.shape[1]
    kept = moves & (count[:rows] >= skipped)
    history[at, ring] = torch.where(kept.unsqueeze(1), frame, history[at, ring])
    column[:rows] = torch.where(moves.unsqueeze(1), frame, column[:rows])
    position[:rows].add_(moves)
    count[:rows].add_(moves)


def _enter_triton(
    columns: Tensor, position: Tensor, active: Tensor | None, spare: int, embedding: Embedding, rope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, books = len(columns), columns.shape[1] - 1
    size, turn = embedding.main.shape[1], rope[0].numel()
    x = torch.empty(rows, size, dtype=embedding.main.dtype, device=columns.device)
    target = torch.empty_like(position)
    turns = torch.empty(rows, *rope.shape[1:], dtype=rope.dtype, device=rope.device)
    # Never launched early: see `backend`.
    _enter_kernel[(rows, triton.cdiv(size, BLOCK))](
        columns,
        position,
        position if active is None else active,
        embedding.main,
        embedding.codes,
        rope,
        x,
        target,
        turns,
        spare,
        *embedding.semantic,
        math.sqrt(books + 1) if embedding.scaled else 1.0,
        len(embedding.codes) // books,
        columns.stride(0),
        size,
        turn,
        books,
        BLOCK,
        triton.next_power_of_2(turn),
        ACTIVE=active is not None,
        EARLY=follows_early(columns.device),
        num_warps=2,
    )
    return x, target, turns


@jit
def _enter_kernel(
    columns,
    position,
    active,
    main,
    codes,
    rope,
    out,
    target,
    turns,
    spare,
    first,
    last,
    scale,
    book_size,
    stride,
    size,
    turn,
    BOOKS: tl.constexpr,
    BLOCK: tl.constexpr,
    TURN: tl.constexpr,
    ACTIVE: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    wait_for_last(EARLY)
    token = tl.load(columns + row * stride)
    x = tl.load(main + token * size + at, mask=inside, other=0.0)
    if tl.program_id(1) == 0:
        place = tl.load(position + row)
        goes = tl.load(active + row) != 0 if ACTIVE else place >= 0
        tl.store(target + row, tl.where(goes, place, spare))
        pair = tl.arange(0, TURN)
        angle = tl.load(rope + tl.maximum(place, 0) * turn + pair, mask=pair < turn, other=0.0)
        tl.store(turns + row * turn + pair, angle, mask=pair < turn)
    if (token >= first) & (token <= last):
        total = tl.zeros([BLOCK], tl.float32)
        for book in tl.static_range(BOOKS):
            code = tl.load(columns + row * stride + 1 + book) + book * book_size
            total += tl.load(codes + code * size + at, mask=inside, other=0.0).to(tl.float32)
        summed = (x.to(tl.float32) + total.to(x.dtype).to(tl.float32)).to(x.dtype)
        x = (summed.to(tl.float32) / scale).to(x.dtype)
    tl.store(out + row * size + at, x, mask=inside)


def _take_frame_triton(
    frame: Tensor, history: Tensor, column: Tensor, position: Tensor, count: Tensor, active: Tensor, skipped: int
) -> None:
    rows, width = len(frame), column.shape[1]
    _take_kernel[(rows,)](
        frame,
        history,
        column,
        position,
        count,
        active,
        skipped,
        *frame.stride(),
        history.shape[1],
        width,
        triton.next_power_of_2(width),
        **launch(frame),
        num_warps=1,
    )


@jit
def _take_kernel(
    frame,
    history,
    column,
    position,
    count,
    active,
    skipped,
    row_stride,
    stride,
    window,
    width,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    wait_for_last(EARLY)
    made = tl.load(count + row)
    if tl.load(active + row) != 0:
        value = tl.load(frame + row * row_stride + at * stride, mask=inside, other=0)
        if made >= skipped:
            ring = (made - skipped) % window
            tl.store(history + (row * window + ring) * width + at, value, mask=inside)
        tl.store(column + row * width + at, value, mask=inside)
        tl.store(position + row, tl.load(position + row) + 1)
        tl.store(count + row, made + 1)
