"""Matrix products of few rows, fused with residual sum, norm, bias, gate or GELU. Reading weights limits their speed.

`gemv` computes up to two rows in one kernel: each program loads its weights into registers before the rows are ready.
`skinny_gemm` uses tensor cores, and fetches its weights into the L2 cache before the rows are ready. For products of
few outputs, several programs each sum a part of the inputs, and the next norm adds these parts to the residual.
Quantized weights are dequantized in the kernel, and each output is multiplied by its scale.
In batch-invariant mode (see `backend`), `skinny_gemm` computes any number of rows, and inputs are always split in the
same way as for `TALL` rows.
Shapes: B rows, K inputs, N outputs, P parts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import (
    HAS_TRITON,
    dequantize,
    fetch_ahead,
    is_batch_invariant,
    jit,
    launch,
    runs_triton,
    shared_memory,
    wait_for_last,
)
from s1_mini.kernels.norm import Norm, add_norm
from s1_mini.kernels.swiglu import swiglu
from s1_mini.kernels.weight import QuantizedWeight, Weight, product, values_and_scale

if HAS_TRITON:
    import triton
    import triton.language as tl

GEMV_ROWS = 2
MAX_INPUTS = 8192  # limit of one program of `gemv`
MAX_ROWS = 128  # with more rows, cuBLAS is as fast
TALL = 64  # rows of a tile, the minimum of Hopper's tensor cores
PROMPT_ROWS = 512  # products of more rows, mostly steps of audio, use larger tiles in batch-invariant mode


@jit
def load_scales(scale, at, is_inside):
    """Return the scales of these outputs; 1 for weights in full precision."""
    if scale is not None:
        return tl.load(scale + at, mask=is_inside, other=0.0).to(tl.float32)
    return tl.full(at.shape, 1.0, tl.float32)


@jit
def gelu_of(x):
    """Return the exact GELU of x (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


class Tile(NamedTuple):
    """Sizes and launch options of a program of `skinny_gemm`; `stages` are those of the load pipeline."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int

    def shared_bytes(self, item_size: int, gated: bool) -> int:
        """Return an upper bound of the shared memory in bytes: rows and weights of each stage, in Triton's layout."""
        return self.stages * self.inputs * (self.rows + self.outputs * (2 if gated else 1)) * item_size

    def within(self, limit: int, item_size: int, gated: bool) -> Tile:
        """Return this tile, with fewer stages or fewer inputs per stage if it needs more than `limit` bytes."""
        tile = self
        while tile.shared_bytes(item_size, gated) > limit:
            tile = tile._replace(stages=tile.stages - 1) if tile.stages > 2 else tile._replace(inputs=tile.inputs // 2)
        return tile


def num_parts(rows: int, outputs: int, inputs: int) -> int:
    """Return into how many parts the inputs are split: products of few outputs need several parts to fill the GPU."""
    if outputs > 2048:
        return 1
    return 4 if inputs > 2048 or (inputs == 2048 and rows <= TALL) else 2


def gemm_tile(
    rows: int, outputs: int, inputs: int, *, gated: bool, item_size: int, limit: int, batch_invariance: bool = False
) -> Tile:
    """Return the tile of `skinny_gemm` for numbers of `item_size` bytes, within `limit` bytes of shared memory.

    The tiles are the fastest of about a hundred on an H200 (docs/internals/kernels.md), which has 227 KB of shared
    memory. GPUs with less (A10G, L4 and L40S 99 KB, T4 64 KB) have fewer stages, or fewer inputs per stage. With
    `batch_invariance`, the inputs per stage do not depend on the number of rows.
    """
    block = min(128, max(16, 1 << (inputs - 1).bit_length()))
    if batch_invariance:
        largest = Tile(2 * TALL, TALL if gated else 2 * TALL, block, warps=8, stages=3)
        block = largest.within(limit, item_size, gated).inputs
        if rows > PROMPT_ROWS:
            wide = TALL if outputs <= TALL else largest.outputs
            return largest._replace(outputs=wide, inputs=block).within(limit, item_size, gated)
        if rows > MAX_ROWS and max(outputs, inputs) > 1024:
            return Tile(2 * TALL, TALL, block, warps=8, stages=3).within(limit, item_size, gated)
    elif gated and outputs > 4096 and rows <= MAX_ROWS:  # all tiles fit on an H200 at once
        wide, stages = (64, 5) if rows <= TALL else (32, 4)
        stages = stages if item_size <= 2 else 2
        return Tile(TALL, wide, min(block, 64), warps=4, stages=stages).within(limit, item_size, gated)
    if rows <= TALL:
        wide = 16 if outputs <= 1024 and inputs <= 1024 and not gated else 32
    else:
        is_deep = inputs >= 2048 or rows > MAX_ROWS if batch_invariance else inputs > 2048
        wide = 64 if gated or outputs > 2048 or is_deep else 32
        block = min(block, 64) if gated and not batch_invariance else block
    return Tile(TALL, wide, block, warps=4, stages=5 if item_size <= 2 else 2).within(limit, item_size, gated)


def skinny_gemm(
    x: Tensor, weight: Weight, bias: Tensor | None, gated: bool, parts: int, *, gelu: bool = False
) -> Tensor:
    """Return x [B, K] @ weight.T + bias, gated or with GELU: [B, N], or with several `parts` float32 [P, B, N].

    The result is the sum of the parts. `gated` needs `weight` [2 N, K].
    """
    rows, inputs = x.shape
    outputs = weight.shape[0] // (2 if gated else 1)
    values, scale = values_and_scale(weight)
    limit, item_size = shared_memory(x.device), x.element_size()
    tile = gemm_tile(
        rows, outputs, inputs, gated=gated, item_size=item_size, limit=limit, batch_invariance=is_batch_invariant()
    )
    part = triton.cdiv(triton.cdiv(inputs, parts), tile.inputs) * tile.inputs
    parts = triton.cdiv(inputs, part)
    shape, kind = ((rows, outputs), x.dtype) if parts == 1 else ((parts, rows, outputs), torch.float32)
    out = torch.empty(shape, dtype=kind, device=x.device)
    _gemm_kernel[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows), parts)](
        x,
        values,
        scale,
        bias,
        out,
        rows,
        outputs,
        inputs,
        part,
        tile.rows,
        tile.outputs,
        tile.inputs,
        GATED=gated,
        GELU=gelu,
        LINE=128 // values.element_size(),
        **launch(x),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


@jit
def _fetch_weights(
    weight, first, begin, EACH: tl.constexpr, INPUTS: tl.constexpr, PART: tl.constexpr, LINE: tl.constexpr
):
    LINES: tl.constexpr = triton.next_power_of_2((PART + LINE - 1) // LINE)  # a cache line has LINE numbers, 128 bytes
    line = tl.minimum(begin + tl.arange(0, LINES) * LINE, INPUTS - 1)
    at = (first + tl.arange(0, EACH)).to(tl.int64)[:, None] * INPUTS + line[None, :]
    fetch_ahead(weight + at)


@jit
def _gemm_kernel(  # noqa: C901 - its branches are resolved at compile time
    x,
    weight,
    scale,
    bias,
    out,
    rows,
    outputs,
    INPUTS: tl.constexpr,
    PART: tl.constexpr,
    HEIGHT: tl.constexpr,
    EACH: tl.constexpr,
    BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    LINE: tl.constexpr,
    EARLY: tl.constexpr,
):
    first = tl.program_id(0) * EACH
    part = tl.program_id(2)
    begin = part * PART
    at = first + tl.arange(0, EACH)
    row = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    present, taken = row < rows, at < outputs
    if EARLY:
        if first + EACH <= outputs:
            _fetch_weights(weight, first, begin, EACH, INPUTS, PART, LINE)
            if GATED:
                _fetch_weights(weight, first + outputs, begin, EACH, INPUTS, PART, LINE)
    scales = load_scales(scale, at, taken)
    if GATED:
        other_scales = load_scales(scale, outputs + at, taken)
    wait_for_last(EARLY)
    total = tl.zeros([HEIGHT, EACH], tl.float32)
    second = tl.zeros([HEIGHT, EACH], tl.float32)
    for step in range(0, PART, BLOCK):
        k = begin + step + tl.arange(0, BLOCK)
        if INPUTS % PART == 0 and PART % BLOCK == 0:
            inside = k >= 0
        else:
            inside = k < INPUTS
        value = tl.load(x + row[:, None] * INPUTS + k[None, :], mask=present[:, None] & inside[None, :], other=0.0)
        where = at[None, :] * INPUTS + k[:, None]
        is_inside = taken[None, :] & inside[:, None]
        weights = dequantize(tl.load(weight + where, mask=is_inside, other=0.0), value, EARLY)
        total = tl.dot(value, weights, total, input_precision="ieee")
        if GATED:
            others = dequantize(tl.load(weight + outputs * INPUTS + where, mask=is_inside, other=0.0), value, EARLY)
            second = tl.dot(value, others, second, input_precision="ieee")
    total *= scales[None, :]
    if bias is not None:
        total += tl.load(bias + at, mask=taken & (part == 0), other=0.0).to(tl.float32)[None, :]
    if GELU:
        total = gelu_of(total.to(out.dtype.element_ty).to(tl.float32))
    if GATED:
        kind = out.dtype.element_ty
        total = total.to(kind).to(tl.float32)
        second = (second * other_scales[None, :]).to(kind).to(tl.float32)
        total = (total * tl.sigmoid(total)).to(kind).to(tl.float32) * second
    to = (part * rows + row[:, None]) * outputs + at[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=present[:, None] & taken[None, :])


def gemv(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None,
    norm: Norm | None,
    gated: bool,
    residual: Tensor | None,
    *,
    gelu: bool = False,
) -> Tensor:
    """Return norm(x) @ weight.T + bias, gated or with GELU, plus `residual`, [B, N]; x is [B, K], `weight` [N, K].

    `gated` needs `weight` [2 N, K]. `norm`, `bias` and `residual` may be None.
    """
    rows, inputs = x.shape
    outputs = weight.shape[0] // (2 if gated else 1)
    values, scale = values_and_scale(weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    each = 4 if gated or inputs > 1024 else 8
    _gemv_kernel[(triton.cdiv(outputs, each),)](
        x,
        values,
        scale,
        bias,
        norm.weight if norm else None,
        residual,
        out,
        norm.eps if norm else 0.0,
        outputs,
        rows,
        inputs,
        triton.next_power_of_2(inputs),
        each,
        CENTRED=norm is not None and norm.centred,
        GATED=gated,
        GELU=gelu,
        **launch(x),
        num_warps=8 if inputs > 4096 else 4,
    )
    return out


@jit
def _gemv_kernel(  # noqa: C901 - its branches are resolved at compile time
    x,
    weight,
    scale,
    bias,
    norm,
    residual,
    out,
    eps,
    outputs,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    EACH: tl.constexpr,
    CENTRED: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    EARLY: tl.constexpr,
):
    at = tl.program_id(0) * EACH + tl.arange(0, EACH)
    k = tl.arange(0, PADDED)
    inside = k < INPUTS
    taken = (at < outputs)[:, None] & inside[None, :]
    where = at[:, None] * INPUTS + k[None, :]
    weights = tl.load(weight + where, mask=taken, other=0.0)
    if GATED:
        others = tl.load(weight + outputs * INPUTS + where, mask=taken, other=0.0)
        other_scales = load_scales(scale, outputs + at, at < outputs)
    if norm is not None:
        norms = tl.load(norm + k, mask=inside, other=0.0).to(tl.float32)
    scales = load_scales(scale, at, at < outputs)
    if bias is not None:
        added = tl.load(bias + at, mask=at < outputs, other=0.0).to(tl.float32)
    wait_for_last(EARLY)
    for row in tl.static_range(ROWS):
        value = tl.load(x + row * INPUTS + k, mask=inside, other=0.0)
        full = value.to(tl.float32)
        if CENTRED:
            full = tl.where(inside, full - tl.sum(full, axis=0) / INPUTS, 0.0)
        if norm is not None:
            inverse_rms = tl.rsqrt(tl.sum(full * full, axis=0) / INPUTS + eps)
            full = full * inverse_rms
            if not CENTRED:
                full = full.to(value.dtype).to(tl.float32)
            full = (full * norms).to(value.dtype).to(tl.float32)
        total = tl.sum(weights.to(tl.float32) * full[None, :], axis=1) * scales
        if bias is not None:
            total += added
        total = total.to(value.dtype).to(tl.float32)
        if GELU:
            total = gelu_of(total)
        if GATED:
            second = tl.sum(others.to(tl.float32) * full[None, :], axis=1) * other_scales
            second = second.to(value.dtype).to(tl.float32)
            total = (total * tl.sigmoid(total)).to(value.dtype).to(tl.float32) * second
        if residual is not None:
            total = total.to(value.dtype).to(tl.float32)
            total += tl.load(residual + row * outputs + at, mask=at < outputs, other=0.0).to(tl.float32)
        tl.store(out + row * outputs + at, total.to(value.dtype), mask=at < outputs)


def norm_linear(
    x: Tensor,
    branch: Tensor | None,
    norm: Norm,
    weight: Weight,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
    gelu: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return x + `branch`, both [B, K], and norm(x + branch) @ weight.T + bias [B, N] for `weight` [N, K].

    `branch` may be the second result of `linear_sum`. With `gated`, `weight` is [2 N, K] and the second result is
    silu(first half) * second half of the product; with `gelu`, the second result is the product's exact GELU.
    """
    if _uses_gemv(x) and branch is None:
        return x, gemv(x.contiguous(), weight, bias, norm, gated, None, gelu=gelu)
    x, normed = add_norm(x, branch, norm)
    if _uses_gemm(x, weight):
        return x, skinny_gemm(normed, weight, bias, gated, parts=1, gelu=gelu)
    out = product(normed, weight, bias)
    if gelu:
        return x, F.gelu(out)
    return x, swiglu(out) if gated else out


def linear_sum(x: Tensor, weight: Weight, bias: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return `residual` [B, N] + x [B, K] @ weight.T + bias as two summands, which the next norm adds.

    The second summand is None, [B, N], or several parts [P, B, N], whose sum is the summand.
    """
    if _uses_gemv(x):
        return gemv(x.contiguous(), weight, bias, None, False, residual.contiguous()), None
    if _uses_gemm(x, weight):
        parts = num_parts(TALL if is_batch_invariant() else len(x), *weight.shape)
        return residual, skinny_gemm(x.contiguous(), weight, bias, False, parts=parts)
    return residual, product(x, weight, bias)


def linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """Return x [..., K] @ weight.T + bias, [..., N], for `weight` [N, K]."""
    if not runs_triton(x) or not (isinstance(weight, QuantizedWeight) or is_batch_invariant()):
        return product(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    if _uses_gemv(rows):
        out = gemv(rows, weight, bias, None, False, None)
    else:
        out = skinny_gemm(rows, weight, bias, False, parts=1)
    return out.view(*x.shape[:-1], -1)


def branch_sum(x: Tensor, branch: Tensor | None) -> Tensor:
    """Return the sum [B, N] of the two results of `linear_sum`."""
    if branch is None:
        return x
    return x + (branch.sum(0).to(x.dtype) if branch.ndim > x.ndim else branch)


def _uses_gemv(x: Tensor) -> bool:
    return runs_triton(x) and len(x) <= GEMV_ROWS and x.shape[1] <= MAX_INPUTS and not is_batch_invariant()


def _uses_gemm(x: Tensor, weight: Weight) -> bool:
    return runs_triton(x) and (len(x) <= MAX_ROWS or isinstance(weight, QuantizedWeight) or is_batch_invariant())
