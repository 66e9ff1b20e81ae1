"""Grouped-query attention of one token per row over the row's used positions, split over the length.

The kernel reads the length of a row on the device, so that one captured graph serves rows of any length. It also norms,
rotates and stores the new tokens. Each part of a row's positions has its own program (flash decoding, Dao et al. 2023);
a second kernel joins the parts. Before both, `common_attention` may attend to common prefixes for all rows at once.
Shapes: B rows, H query heads, G key-value heads, D head size, S positions.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.attention_kernels import join_blocks_kernel, join_kernel, part_kernel, prompt_kernel, short_kernel
from s1_mini.kernels.backend import HAS_TRITON, is_batch_invariant, launch, runs_triton
from s1_mini.kernels.common_attention import FEWEST_ROWS, INVARIANT_BLOCK, CommonPrefixes, attend_common
from s1_mini.kernels.rope import HeadNorms, rope_store

if HAS_TRITON:
    import triton

BLOCK = 64  # positions per iteration
MANY_ROWS = 64  # with more rows, smaller blocks are faster
PROGRAMS = 256  # rows are split into parts until this many programs fill the GPU
PROMPT_LINES = 32  # rows times query heads per program of a prompt
SHORT = 16  # positions, as many as a depth transformer has; up to this many, `short_kernel` needs no `tl.dot`
SHORT_NUMBERS = 2048  # products of queries and keys of a warp, at most 64 per thread


def used_positions(position: Tensor, span: int, size: int) -> Tensor | None:
    """Return a mask [B, 1, 1, `span`] of used positions, for all layers of a step; None for Triton, which needs none.

    Each row attends to the positions up to its `position` [B], and always to position 0. `size` is the head size.
    """
    if can_attend(position, size):
        return None
    return (torch.arange(span, device=position.device) <= position.clamp_min(0).unsqueeze(1))[:, None, None]


def reads_common(rows: int, groups: int, span: int) -> bool:
    """Return whether a step of `rows` rows may read common prefixes once; not if rows are split into parts."""
    return rows >= FEWEST_ROWS and _split(rows, groups, span)[1] == 1


def step_attention(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    target: Tensor,
    position: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    *,
    span: int,
    mask: Tensor | None,
    slots: Tensor | None = None,
    common: CommonPrefixes | None = None,
    is_prompt: bool = False,
) -> Tensor:
    """Store a token of each row in the cache, and return its attention [B, H D] to the row's positions.

    `qkv` [B, (H + 2 G) D] is the token's projection. Its key and value are stored at `target` [B] of keys and values
    [slots, G, S, D], whose dtype is qkv's or fp8. The row attends to positions up to its `position` [B]; without
    `slots` the new token is treated as the row's last position, whatever `target` is. `slots` [B] are the rows' slots,
    which may repeat; None means the first B. `rope` [B, D / 2, 2] has each row's cos and sin. All positions are below
    `span`; `mask` is the result of `used_positions`. No kernel of a frame may write `position`, `slots` or `common`,
    because this kernel reads them before the previous kernel has ended. Where it is faster, the prefixes in `common`
    are read from one slot of each group; this changes results only by rounding, and not at all in batch-invariant mode.
    With `is_prompt`, which needs `slots`, neighbouring rows of a slot read its keys and values once, except in
    batch-invariant mode; rows with negative positions are padding, and their results are undefined.
    """
    if slots is None and can_attend(qkv, keys.shape[-1]):
        if _is_short(qkv, keys, span) and common is None:
            return _attend_short(qkv, keys, values, target, position, rope, norms, span)
        return _attend_triton(qkv, keys, values, position, span, new=(target, rope, norms), common=common)
    query = rope_store(qkv, keys, values, target, rope, norms, slots)
    if is_prompt and slots is not None and can_attend(query, query.shape[-1]) and not is_batch_invariant():
        return _attend_prompt(query, keys, values, position, slots)
    return decode_attention(query, keys, values, position, span, mask, slots).flatten(1)


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    span: int,
    mask: Tensor | None,
    slots: Tensor | None = None,
) -> Tensor:
    """Return the attention [B, H, D] from `query` [B, H, D] to each row's positions up to `position` [B].

    Keys and values are [slots, G, S, D]; all positions are below `span`. `mask` is the result of `used_positions`, or
    None if all rows have `span` positions. `slots` [B] are the rows' slots; None means the first B.
    """
    if can_attend(query, query.shape[-1]):
        rows = query.flatten(1).contiguous()  # may be a slice of a joint projection
        return _attend_triton(rows, keys, values, position, span, slots=slots).view(query.shape)
    slot_ids = slice(len(query)) if slots is None else slots
    if query.device.type == "cpu" and query.dtype == torch.float32:
        return _attend_by_products(query, keys[slot_ids, :, :span].float(), values[slot_ids, :, :span].float(), mask)
    out = F.scaled_dot_product_attention(
        query.unsqueeze(2),
        keys[slot_ids, :, :span].to(query.dtype),
        values[slot_ids, :, :span].to(query.dtype),
        attn_mask=mask,
        enable_gqa=keys.shape[1] != query.shape[1],
    )
    return out.squeeze(2)


def _attend_by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attend with two batched matrix products, which round a row in the same way whatever the other rows are.

    The rounding of `scaled_dot_product_attention` on a CPU with several threads depends on the thread that computes
    a row (torch 2.13), and therefore on the number of rows.
    """
    rows, heads, size = query.shape
    groups = keys.shape[1]
    scores = (query * size**-0.5).view(rows, groups, heads // groups, size) @ keys.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ values).view(rows, heads, size)


def can_attend(x: Tensor, size: int) -> bool:
    """Return whether the kernel supports x and this head size: Triton's product needs a power of two, at least 16."""
    return runs_triton(x) and size >= 16 and size & (size - 1) == 0


def _is_short(qkv: Tensor, keys: Tensor, span: int) -> bool:
    """Return whether `short_kernel` supports these sizes."""
    groups, size = keys.shape[1], keys.shape[3]
    padded = triton.next_power_of_2(qkv.shape[1] // size // groups - 2)
    return span <= SHORT and padded * SHORT * size <= 4 * SHORT_NUMBERS


def _attend_short(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    target: Tensor,
    position: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    span: int,
) -> Tensor:
    """Compute `step_attention` with one program for each row and key-value head."""
    rows, groups, size = len(qkv), keys.shape[1], keys.shape[3]
    heads = qkv.shape[1] // size - 2 * groups
    out = torch.empty(rows, heads * size, dtype=qkv.dtype, device=qkv.device)
    # The order of sums must not depend on the span in batch-invariant mode.
    positions = SHORT if is_batch_invariant() else triton.next_power_of_2(span)
    padded = triton.next_power_of_2(heads // groups)
    short_kernel[(rows, groups)](
        qkv,
        keys,
        values,
        position,
        target,
        rope,
        norms.query if norms else None,
        norms.key if norms else None,
        norms.eps if norms else 0.0,
        out,
        1 / math.sqrt(size),
        keys.stride(0),
        keys.stride(1),
        position.stride(0),
        target.stride(0),
        rope.stride(0),
        heads,
        groups,
        heads // groups,
        padded,
        size,
        positions,
        ROUND_LAST=norms is None or norms.round_last,
        FP8=keys.dtype != qkv.dtype,
        **launch(qkv),
        num_warps=triton.cdiv(padded * SHORT * size, SHORT_NUMBERS),
    )
    return out


def _attend_triton(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    span: int,
    *,
    slots: Tensor | None = None,
    new: tuple[Tensor, Tensor, HeadNorms | None] | None = None,
    common: CommonPrefixes | None = None,
) -> Tensor:
    """Attend from `queries`; with `new` (cache positions, rotary rows, norms), they are projections of new tokens."""
    groups, size = keys.shape[1], keys.shape[3]
    rows, heads = len(queries), queries.shape[1] // size - (2 * groups if new else 0)
    shared = heads // groups
    block, parts = _split(rows, groups, span)
    blockwise = is_batch_invariant()
    num_sums = triton.cdiv(span, block) + 1 if blockwise else parts  # blocks and the new token, or parts
    out = torch.empty(rows, heads * size, dtype=queries.dtype, device=queries.device)
    sums = torch.empty(rows, heads, num_sums if parts > 1 else 0, size, dtype=torch.float32, device=queries.device)
    tops = torch.empty(rows, heads, num_sums if parts > 1 else 0, 2, dtype=torch.float32, device=queries.device)
    target, rope, norms = new or (position, queries, None)
    shared_sums = None
    if common is not None and new is not None and parts == 1:
        shared_sums = attend_common(queries, keys, values, rope, norms, common)
    part_kernel[(rows, groups, parts)](
        queries,
        keys,
        values,
        position,
        slots,
        target,
        rope,
        norms.query if norms else None,
        norms.key if norms else None,
        norms.eps if norms else 0.0,
        out,
        sums,
        tops,
        shared_sums.starts if shared_sums else None,
        shared_sums.sums if shared_sums else None,
        shared_sums.tops if shared_sums else None,
        shared_sums.sums.shape[2] if shared_sums else 1,
        1 / math.sqrt(size),
        keys.stride(0),
        keys.stride(1),
        position.stride(0),
        target.stride(0),
        rope.stride(0),
        heads,
        groups,
        parts,
        num_sums,
        shared,
        triton.next_power_of_2(max(16, shared)),
        size,
        block,
        ONE_PART=parts == 1,
        BLOCKWISE=blockwise,
        NEW=new is not None,
        ROUND_LAST=norms is None or norms.round_last,
        FP8=keys.dtype != queries.dtype,
        LINE=128 // keys.element_size(),
        COMMON_PARTS=shared_sums.shape.parts if shared_sums else 1,
        COMMON_BLOCK=shared_sums.shape.block if shared_sums else 1,
        **launch(queries),
        enable_fp_fusion=not blockwise,
        num_warps=2 if block > 16 else 4,
        num_stages=2,
    )
    if parts > 1 and blockwise:
        join_blocks_kernel[(rows, heads)](
            sums,
            tops,
            out,
            position,
            position.stride(0),
            heads,
            num_sums,
            block,
            size,
            NEW=new is not None,
            **launch(queries),
            enable_fp_fusion=False,
            num_warps=1,
        )
    elif parts > 1:
        join_kernel[(rows, heads)](
            sums, tops, out, heads, parts, triton.next_power_of_2(parts), size, **launch(queries), num_warps=1
        )
    return out


def _attend_prompt(query: Tensor, keys: Tensor, values: Tensor, position: Tensor, slots: Tensor) -> Tensor:
    rows, heads, size = query.shape
    groups = keys.shape[1]
    padded = triton.next_power_of_2(heads // groups)
    lines = max(PROMPT_LINES, padded)
    out = torch.empty(rows, heads * size, dtype=query.dtype, device=query.device)
    prompt_kernel[(triton.cdiv(rows, lines // padded), groups)](
        query.contiguous(),  # without Triton, `rope_store` returns a slice
        keys,
        values,
        position,
        slots,
        out,
        rows,
        1 / math.sqrt(size),
        keys.stride(0),
        keys.stride(1),
        heads,
        heads // groups,
        padded,
        lines,
        size,
        BLOCK if query.element_size() <= 2 else BLOCK // 2,
        **launch(query),
        num_warps=4,
        num_stages=2,
    )
    return out


def _split(rows: int, groups: int, span: int) -> tuple[int, int]:
    """Return the number of positions per iteration of a program, and the number of parts of each row."""
    block = BLOCK // 2 if rows > MANY_ROWS else BLOCK
    if is_batch_invariant():
        block = INVARIANT_BLOCK
    block = min(block, max(16, 1 << (span - 1).bit_length()))
    return block, max(1, min(-(-span // block), -(-PROGRAMS // (rows * groups))))
