"""`step_layers`, a stack of transformer layers for one token per row, and its parts.

Products are those of `multiply.py`.
Shapes: L layers, R rows, W width, K inputs, N outputs, H query heads, G key-value heads, D head size, S positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from s1_mini.kernels.compiled.build import in_any_order, in_order
from s1_mini.kernels.compiled.multiply import f32, product
from s1_mini.kernels.compiled.product import Product


class Layers(NamedTuple):
    """A stack of pre-norm layers with rotary positions, grouped queries and a gated feed-forward."""

    attention_norm: np.ndarray  # [L, W]
    qkv: Product
    head_norms: np.ndarray  # [L, 2, D], weights for queries and for keys; [0, 2, D] if the model has none
    out: Product
    ffn_norm: np.ndarray  # [L, W]
    both: Product  # the outputs of the gate, then those of the gated branch
    down: Product
    num_heads: int
    eps: float
    kept_layer: int = -1  # layer of the head whose scores are kept; -1: none
    kept_head: int = 0


@in_order
def exp(x):
    """Return e to the x, accurate to two units in the last place. LLVM vectorizes it without a math library."""
    inside = min(max(x, f32(-87.3)), f32(88.3))
    rounder = f32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number
    whole = (inside * f32(1.4426950408889634) + rounder) - rounder
    rest = inside - whole * f32(0.693359375) - whole * f32(-2.12194440e-4)  # ln 2 in two parts
    total = f32(1.9875691500e-4)
    total = total * rest + f32(1.3981999507e-3)
    total = total * rest + f32(8.3334519073e-3)
    total = total * rest + f32(4.1665795894e-2)
    total = total * rest + f32(1.6666665459e-1)
    total = total * rest + f32(5.0000001201e-1)
    total = total * rest * rest + rest + f32(1.0)
    power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
    return total * power if x == x else x  # noqa: PLR0124 - NaN stays


@in_any_order
def rms_norm(x, weight, eps, out):
    """Put the root-mean-square norm of the rows of x [R, W] into `out`, which may be x."""
    for row in range(x.shape[0]):
        total = f32(0)
        for k in range(x.shape[1]):
            total += x[row, k] * x[row, k]
        factor = f32(1) / np.sqrt(total / f32(x.shape[1]) + f32(eps))
        for k in range(x.shape[1]):
            out[row, k] = x[row, k] * factor * weight[k]


@in_order
def add(x, branch):
    """Add `branch` [R, W] to x [R, W], in place."""
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[row, k] += branch[row, k]


@in_order
def swiglu(both, out):
    """Put silu(a) * b into `out` [R, N], where each row of `both` [R, 2 N] holds a, then b."""
    size = out.shape[1]
    for row in range(out.shape[0]):
        for n in range(size):
            gate = both[row, n]
            out[row, n] = gate / (f32(1) + exp(-gate)) * both[row, size + n]


@in_any_order
def layer_norm(x, weight, bias, eps, out):
    """Put the layer norm of the rows of x [R, W] into `out`, which may be x."""
    size = f32(x.shape[1])
    for row in range(x.shape[0]):
        total = f32(0)
        for k in range(x.shape[1]):
            total += x[row, k]
        mean = total / size
        total = f32(0)
        for k in range(x.shape[1]):
            total += (x[row, k] - mean) * (x[row, k] - mean)
        factor = f32(1) / np.sqrt(total / size + f32(eps))
        for k in range(x.shape[1]):
            out[row, k] = (x[row, k] - mean) * factor * weight[k] + bias[k]


@in_order
def gelu(x):
    """Apply GELU to x [R, N] in place, with the error function of Abramowitz and Stegun, formula 7.1.26."""
    for row in range(x.shape[0]):
        for n in range(x.shape[1]):
            value = abs(x[row, n]) * f32(0.7071067811865476)
            t = f32(1) / (f32(1) + f32(0.3275911) * value)
            total = f32(1.061405429) * t - f32(1.453152027)
            total = total * t + f32(1.421413741)
            total = total * t - f32(0.284496736)
            total = total * t + f32(0.254829592)
            rest = total * t * exp(-value * value)  # 1 - error function
            x[row, n] *= f32(0.5) * rest if x[row, n] < 0 else f32(1) - f32(0.5) * rest


@in_order
def apply_rope(heads, rope):
    """Rotate the pairs of heads [H, D] by a row of the table, [D / 2, 2]."""
    for head in range(heads.shape[0]):
        for pair in range(rope.shape[0]):
            even, odd = heads[head, 2 * pair], heads[head, 2 * pair + 1]
            cos, sin = rope[pair, 0], rope[pair, 1]
            heads[head, 2 * pair] = even * cos - odd * sin
            heads[head, 2 * pair + 1] = odd * cos + even * sin


@in_any_order
def dot(first, second):
    """Return the sum of the products of two vectors [N]."""
    total = f32(0)
    for k in range(first.shape[0]):
        total += first[k] * second[k]
    return total


@in_any_order
def sum_of(x):
    """Return the sum of x [N]."""
    total = f32(0)
    for k in range(x.shape[0]):
        total += x[k]
    return total


@in_order
def attend(query, keys, values, length, scores, out):  # noqa: C901 - nested loops are one kernel
    """Attend from `query` [H, D] to the first `length` positions of keys and values [G, S, D].

    The result is put into `out` [H D]. `scores` [H, at least `length`] is scratch space.
    """
    heads, size = query.shape
    shared = heads // keys.shape[0]
    scale = f32(1) / np.sqrt(f32(size))
    fours = length // 4 * 4
    for head in range(heads):
        key, value, score = keys[head // shared], values[head // shared], scores[head, :length]
        head_query = query[head]
        for position in range(length):
            score[position] = dot(head_query, key[position]) * scale
        top = score[0]
        for position in range(length):
            top = score[position] if not score[position] <= top else top
        for position in range(length):
            score[position] = exp(score[position] - top)
        factor = f32(1) / sum_of(score)
        to = out[head * size : (head + 1) * size]
        for d in range(size):
            to[d] = f32(0)
        for position in range(0, fours, 4):
            s0, s1, s2, s3 = score[position], score[position + 1], score[position + 2], score[position + 3]
            v0, v1, v2, v3 = value[position], value[position + 1], value[position + 2], value[position + 3]
            for d in range(size):
                to[d] += s0 * v0[d] + s1 * v1[d] + s2 * v2[d] + s3 * v3[d]
        for position in range(fours, length):
            for d in range(size):
                to[d] += score[position] * value[position, d]
        for d in range(size):
            to[d] *= factor


@in_order
def multiply(x, part, layer, out):
    """Put x [R, K] times the weights of a layer into `out` [R, N]."""
    product(x, part.weight[layer], part.scale[layer], part.bias[layer], out)


@in_order
def step_layers(x, layers, keys, values, slots, positions, lengths, rope, kept):
    """Run one token of each row, x [R, W], through the layers, in place.

    The token's keys and values are stored at `positions` [R] of `slots` [R] in `keys` and `values` [L, slots, G, S, D].
    The token attends to the slot's first `lengths` [R] positions, including its own. Rows may share a slot. `rope`
    [R, D / 2, 2] has the cos and sin of each row. If `layers.kept_layer` is not -1, the attention weights of
    `layers.kept_head` in that layer, not normalized, are stored in each slot's row of `kept` [slots, S].
    """
    rows = x.shape[0]
    num_layers, _, groups, _, size = keys.shape
    heads = layers.num_heads
    normed = np.empty_like(x)
    branch = np.empty_like(x)
    qkv = np.empty((rows, (heads + 2 * groups) * size), np.float32)
    attended = np.empty((rows, heads * size), np.float32)
    both = np.empty((rows, layers.both.bias.shape[1]), np.float32)
    activated = np.empty((rows, both.shape[1] // 2), np.float32)
    most = 0
    for row in range(rows):
        most = max(most, lengths[row])
    scores = np.empty((heads, most), np.float32)
    for layer in range(num_layers):
        rms_norm(x, layers.attention_norm[layer], layers.eps, normed)
        multiply(normed, layers.qkv, layer, qkv)
        for row in range(rows):
            parts = qkv[row].reshape((heads + 2 * groups, size))
            if layers.head_norms.shape[0] > 0:
                rms_norm(parts[:heads], layers.head_norms[layer, 0], layers.eps, parts[:heads])
                others = parts[heads : heads + groups]
                rms_norm(others, layers.head_norms[layer, 1], layers.eps, others)
            apply_rope(parts[: heads + groups], rope[row])
            slot, position = slots[row], positions[row]
            for group in range(groups):
                for d in range(size):
                    keys[layer, slot, group, position, d] = parts[heads + group, d]
                    values[layer, slot, group, position, d] = parts[heads + groups + group, d]
        for row in range(rows):
            query = qkv[row, : heads * size].reshape((heads, size))
            slot = slots[row]
            attend(query, keys[layer, slot], values[layer, slot], lengths[row], scores, attended[row])
            if layer == layers.kept_layer:
                for column in range(lengths[row]):
                    kept[slot, column] = scores[layers.kept_head, column]
        multiply(attended, layers.out, layer, branch)
        add(x, branch)
        rms_norm(x, layers.ffn_norm[layer], layers.eps, normed)
        multiply(normed, layers.both, layer, both)
        swiglu(both, activated)
        multiply(activated, layers.down, layer, branch)
        add(x, branch)
