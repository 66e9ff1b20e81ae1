"""Both ends of a frame: a column of tokens embedded, and what was made put where the next frame looks for it.

Shapes: B rows, K codebooks, D channels, V codes of a book, W frames of the repetition window.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 256


def embed_columns(columns: Tensor, semantic: tuple[int, int], main: Tensor, codes: Tensor, *, scaled: bool) -> Tensor:
    """Embed `columns` [B, K + 1], main token before codes, by the tables `main` [tokens, D], `codes` [K V, D]; [B, D].

    Only between a `semantic` first and last token do codes count; `scaled` divides the sum of the K + 1 by its root.
    """
    if runs_triton(main):
        return _embed_columns_triton(columns, semantic, main, codes, scaled)
    books = columns.shape[1] - 1
    offsets = torch.arange(books, device=columns.device) * (len(codes) // books)
    x = main[columns[:, 0]]
    spoken = x + codes[columns[:, 1:] + offsets].sum(1)
    if scaled:
        spoken = spoken / math.sqrt(books + 1)
    says = (columns[:, 0] >= semantic[0]) & (columns[:, 0] <= semantic[1])
    return torch.where(says.unsqueeze(1), spoken, x)


def take_frame(
    frame: Tensor, history: Tensor, column: Tensor, position: Tensor, count: Tensor, active: Tensor, skipped: int
) -> None:
    """Take `frame` [B, K + 1] as what the active of the first B rows made: everything else is changed in place.

    `history` [rows, W, K + 1] is a ring of the last frames but the first `skipped`, `column` [rows, K + 1] what a row
    reads next, at `position` [rows]; `count` [rows] is how many frames it has made; `active` [rows] bool.
    """
    if runs_triton(frame):
        _take_frame_triton(frame, history, column, position, count, active, skipped)
        return
    rows = len(frame)
    at, moves = torch.arange(rows, device=frame.device), active[:rows]
    ring = (count[:rows] - skipped) % history.shape[1]
    kept = moves & (count[:rows] >= skipped)
    history[at, ring] = torch.where(kept.unsqueeze(1), frame, history[at, ring])
    column[:rows] = torch.where(moves.unsqueeze(1), frame, column[:rows])
    position[:rows].add_(moves)
    count[:rows].add_(moves)


def _embed_columns_triton(
    columns: Tensor, semantic: tuple[int, int], main: Tensor, codes: Tensor, scaled: bool
) -> Tensor:
    rows, books = len(columns), columns.shape[1] - 1
    size = main.shape[1]
    out = torch.empty(rows, size, dtype=main.dtype, device=main.device)
    _embed_kernel[(rows, triton.cdiv(size, BLOCK))](
        columns,
        main,
        codes,
        out,
        *semantic,
        math.sqrt(books + 1) if scaled else 1.0,
        len(codes) // books,
        columns.stride(0),
        size,
        books,
        BLOCK,
        **launch(main),
        num_warps=2,
    )
    return out


@jit
def _embed_kernel(
    columns,
    main,
    codes,
    out,
    first,
    last,
    scale,
    book_size,
    stride,
    size,
    BOOKS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    wait_for_last(EARLY)
    token = tl.load(columns + row * stride)
    x = tl.load(main + token * size + at, mask=inside, other=0.0)
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
    rows, width = frame.shape
    _take_kernel[(rows,)](
        frame.contiguous(),
        history,
        column,
        position,
        count,
        active,
        skipped,
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
        value = tl.load(frame + row * width + at, mask=inside, other=0)
        if made >= skipped:
            ring = (made - skipped) % window
            tl.store(history + (row * window + ring) * width + at, value, mask=inside)
        tl.store(column + row * width + at, value, mask=inside)
        tl.store(position + row, tl.load(position + row) + 1)
        tl.store(count + row, made + 1)
