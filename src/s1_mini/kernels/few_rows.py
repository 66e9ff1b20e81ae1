"""The product of a handful of rows: every program holds its weights in registers before the rows are there.

It does the rest itself: norm, bias, gate or GELU, residual. Shapes: B rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, wait_for_last
from s1_mini.kernels.norm import Norm
from s1_mini.kernels.outputs import gelu_of, load_scales
from s1_mini.kernels.weight import Weight, values_and_scale

if HAS_TRITON:
    import triton
    import triton.language as tl


def few_outputs(inputs: int, gated: bool) -> int:
    """Outputs of a program with a handful of rows."""
    return 4 if gated or inputs > 1024 else 8


def few_rows(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None,
    norm: Norm | None,
    gated: bool,
    residual: Tensor | None,
    *,
    gelu: bool = False,
) -> Tensor:
    """Give norm(x) @ weight.T + bias, gated or with GELU, plus `residual`, [B, N]; x is [B, K], `weight` [N, K].

    `gated` wants `weight` [2 N, K]. `norm`, `bias` and `residual` may be None.
    """
    rows, inputs = x.shape
    outputs = weight.shape[0] // (2 if gated else 1)
    values, scale, scaled = values_and_scale(weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    each = few_outputs(inputs, gated)
    _few_kernel[(triton.cdiv(outputs, each),)](
        x,
        values,
        scale,
        values if bias is None else bias,
        norm.weight if norm else values,
        x if residual is None else residual,
        out,
        norm.eps if norm else 0.0,
        outputs,
        rows,
        inputs,
        triton.next_power_of_2(inputs),
        each,
        SCALED=scaled,
        BIAS=bias is not None,
        NORM=norm is not None,
        CENTRED=norm is not None and norm.centred,
        GATED=gated,
        GELU=gelu,
        SUM=residual is not None,
        **launch(x),
        num_warps=4,
    )
    return out


@jit
def _few_kernel(  # noqa: C901 - its branches are taken when it is compiled
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
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    CENTRED: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    SUM: tl.constexpr,
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
        other_scales = load_scales(scale, outputs + at, at < outputs, SCALED)
    if NORM:
        norms = tl.load(norm + k, mask=inside, other=0.0).to(tl.float32)
    scales = load_scales(scale, at, at < outputs, SCALED)
    if BIAS:
        added = tl.load(bias + at, mask=at < outputs, other=0.0).to(tl.float32)
    wait_for_last(EARLY)
    for row in tl.static_range(ROWS):
        value = tl.load(x + row * INPUTS + k, mask=inside, other=0.0)
        wide = value.to(tl.float32)
        if CENTRED:
            wide = tl.where(inside, wide - tl.sum(wide, axis=0) / INPUTS, 0.0)
        if NORM:
            length = tl.rsqrt(tl.sum(wide * wide, axis=0) / INPUTS + eps)
            wide = wide * length
            if not CENTRED:
                wide = wide.to(value.dtype).to(tl.float32)
            wide = (wide * norms).to(value.dtype).to(tl.float32)
        total = tl.sum(weights.to(tl.float32) * wide[None, :], axis=1) * scales
        if BIAS:
            total += added
        total = total.to(value.dtype).to(tl.float32)
        if GELU:
            total = gelu_of(total)
        if GATED:
            second = tl.sum(others.to(tl.float32) * wide[None, :], axis=1) * other_scales
            second = second.to(value.dtype).to(tl.float32)
            total = (total * tl.sigmoid(total)).to(value.dtype).to(tl.float32) * second
        if SUM:
            total = total.to(value.dtype).to(tl.float32)
            total += tl.load(residual + row * outputs + at, mask=at < outputs, other=0.0).to(tl.float32)
        tl.store(out + row * outputs + at, total.to(value.dtype), mask=at < outputs)
