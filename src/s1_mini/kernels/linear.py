"""Products of few rows with what stands before and after them: residual sum, norm, bias, gate. Bound by the weights.

A handful of rows are done by one kernel with all of that (`few_rows.py`), more by tensor cores (`many_rows.py`).
Weights may be kept in eight bits: a kernel widens them on the way, and multiplies each output by its scale.
In one order (see `backend`) any number of rows takes tensor cores, and inputs are shared out as for `TALL` rows.
Shapes: B rows, K inputs, N outputs, P parts.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import in_one_order, runs_triton
from s1_mini.kernels.few_rows import few_rows
from s1_mini.kernels.gate import gate
from s1_mini.kernels.many_rows import MAX_ROWS, TALL, many_rows, num_parts
from s1_mini.kernels.norm import Norm, add_norm
from s1_mini.kernels.weight import QuantizedWeight, Weight, product

FEW_ROWS = 2
MAX_INPUTS = 4096  # that a program of the few-rows kernel holds


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
    """Give x + `branch`, both [B, K], and norm(x + branch) @ weight.T + bias [B, N] for `weight` [N, K].

    `branch` may be what `linear_sum` left to be added. `gated` wants `weight` [2 N, K] and gives
    silu(first half) * second half; `gelu` gives the exact GELU of the product.
    """
    if _is_few(x) and branch is None:
        return x, few_rows(x.contiguous(), weight, bias, norm, gated, None, gelu=gelu)
    x, normal = add_norm(x, branch, norm)
    if _is_many(x, weight):
        return x, many_rows(normal, weight, bias, gated, parts=1, gelu=gelu)
    out = product(normal, weight, bias)
    if gelu:
        return x, F.gelu(out)
    return x, gate(out) if gated else out


def linear_sum(x: Tensor, weight: Weight, bias: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor | None]:
    """Give two things whose sum is `residual` [B, N] + x [B, K] @ weight.T + bias, for whoever adds and norms them.

    The second is None, [B, N], or [P, B, N] of parts that are summed first.
    """
    if _is_few(x):
        return few_rows(x.contiguous(), weight, bias, None, False, residual.contiguous()), None
    if _is_many(x, weight):
        parts = num_parts(TALL if in_one_order() else len(x), *weight.shape)
        return residual, many_rows(x.contiguous(), weight, bias, False, parts=parts)
    return residual, product(x, weight, bias)


def linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """Give x [..., K] @ weight.T + bias, [..., N], for `weight` [N, K]."""
    if not runs_triton(x) or not (isinstance(weight, QuantizedWeight) or in_one_order()):
        return product(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    if _is_few(rows):
        out = few_rows(rows, weight, bias, None, False, None)
    else:
        out = many_rows(rows, weight, bias, False, parts=1)
    return out.view(*x.shape[:-1], -1)


def branch_sum(x: Tensor, branch: Tensor | None) -> Tensor:
    """Give the sum [B, N] of the two things that `linear_sum` gives."""
    if branch is None:
        return x
    return x + (branch.sum(0).to(x.dtype) if branch.ndim > x.ndim else branch)


def _is_few(x: Tensor) -> bool:
    return runs_triton(x) and len(x) <= FEW_ROWS and x.shape[1] <= MAX_INPUTS and not in_one_order()


def _is_many(x: Tensor, weight: Weight) -> bool:
    return runs_triton(x) and (len(x) <= MAX_ROWS or isinstance(weight, QuantizedWeight) or in_one_order())
