"""The layers of a causal codec with a `FourierDecoder`, for chunks of several streams at once, by one thread.

A call computes T steps of each of B streams. Their past is in arrays of all slots, which are changed in place. All rows
of a call are computed together, so that weights are read once. The sums of a row do not depend on the other rows.
Shapes: R = B T rows, C channels, K inputs, N outputs, H query heads, G key-value heads, D head size, P steps of past;
L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_any_order, in_order
from s1_mini.kernels.compiled.layers import Layers, add, apply_rope, exp, gelu, layer_norm, multiply, rms_norm, swiglu
from s1_mini.kernels.compiled.multiply import AHEAD, dequantize, f32, prefetch
from s1_mini.kernels.compiled.product import BLOCK, Product

TILE = 4  # rows that share the conversion of a weight; arrays of `blocks` and `spectra` have a multiple of this


class Blocks(NamedTuple):
    """A stack of ConvNeXt blocks. The scale of each block's output is part of `down`."""

    depthwise: np.ndarray  # [L, taps, C]
    depthwise_bias: np.ndarray  # [L, C]
    norm: np.ndarray  # [L, 2, C], weight and bias
    up: Product
    down: Product
    eps: float


@in_order
def _multiply_tiles(x, part, layer, out):  # noqa: C901 - nested loops are one kernel
    """Put x [R, K] times the weights of a layer into `out` [R, N]; R is a multiple of `TILE`."""
    weight, scale, bias = part.weight[layer], part.scale[layer], part.bias[layer]
    inputs, line = x.shape[1], 64 // weight.itemsize
    fours = inputs // 4 * 4
    total = np.empty(TILE * BLOCK, np.float32)
    for first in range(0, out.shape[1], BLOCK):
        size = min(BLOCK, out.shape[1] - first)
        for row in range(0, x.shape[0], TILE):
            a, b, c, d = x[row], x[row + 1], x[row + 2], x[row + 3]
            for n in range(TILE * BLOCK):
                total[n] = f32(0)
            for k in range(0, fours, 4):
                a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
                b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
                c0, c1, c2, c3 = c[k], c[k + 1], c[k + 2], c[k + 3]
                d0, d1, d2, d3 = d[k], d[k + 1], d[k + 2], d[k + 3]
                at = first * inputs + k * size
                if row == 0:
                    ahead = at + AHEAD // weight.itemsize
                    for place in range(ahead, ahead + 4 * size, line):
                        prefetch(weight, place)
                w = weight[at : at + 4 * size]
                for n in range(size):
                    w0, w1 = dequantize(w[n]), dequantize(w[size + n])
                    w2, w3 = dequantize(w[2 * size + n]), dequantize(w[3 * size + n])
                    total[n] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
                    total[BLOCK + n] += b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
                    total[2 * BLOCK + n] += c0 * w0 + c1 * w1 + c2 * w2 + c3 * w3
                    total[3 * BLOCK + n] += d0 * w0 + d1 * w1 + d2 * w2 + d3 * w3
            for k in range(fours, inputs):
                w = weight[first * inputs + k * size : first * inputs + (k + 1) * size]
                for r in range(TILE):
                    for n in range(size):
                        total[r * BLOCK + n] += x[row + r, k] * dequantize(w[n])
            for r in range(TILE):
                for n in range(size):
                    out[row + r, first + n] = total[r * BLOCK + n] * scale[first + n] + bias[first + n]


@in_order
def _extend(x, past, slot, begins, joined):
    """Put the past of a slot, then x [T, C], into `joined` [P + T, C]; store the last P steps in `past` [slots, P, C].

    A stream that begins has a past of zeros.
    """
    context = past.shape[1]
    for step in range(context):
        for channel in range(x.shape[1]):
            joined[step, channel] = f32(0) if begins else past[slot, step, channel]
    joined[context:] = x
    past[slot] = joined[x.shape[0] :]


@in_order
def convolve(x, part, past, slots, begins, out):
    """Put a causal convolution of x [R, C], one product of the P + 1 steps that contribute, into `out` [R, N].

    `past` is [slots, P, C]; `slots` and `begins` [B] have the slot of each stream and whether the stream begins.
    """
    steps, context = x.shape[0] // slots.shape[0], past.shape[1]
    joined = np.empty((context + steps, x.shape[1]), np.float32)
    seen = np.empty((x.shape[0], (context + 1) * x.shape[1]), np.float32)
    for stream in range(slots.shape[0]):
        _extend(x[stream * steps : (stream + 1) * steps], past, slots[stream], begins[stream], joined)
        for step in range(steps):
            seen[stream * steps + step] = joined[step : step + context + 1].ravel()
    multiply(seen, part, 0, out)


@in_order
def blocks(x, rows, weights, past, slots, begins):
    """Run ConvNeXt blocks on the first `rows` of x, in place; `past` is [L, slots, P, C]."""
    steps, channels, taps = rows // slots.shape[0], x.shape[1], weights.depthwise.shape[1]
    joined = np.empty((taps - 1 + steps, channels), np.float32)
    normed, branch = np.zeros_like(x), np.empty_like(x)
    inner = np.empty((x.shape[0], weights.up.bias.shape[1]), np.float32)
    for layer in range(weights.depthwise.shape[0]):
        kernel, bias, norm = weights.depthwise[layer], weights.depthwise_bias[layer], weights.norm[layer]
        for stream in range(slots.shape[0]):
            first = stream * steps
            _extend(x[first : first + steps], past[layer], slots[stream], begins[stream], joined)
            for step in range(steps):
                to = normed[first + step]
                for channel in range(channels):
                    to[channel] = bias[channel]
                for tap in range(taps):
                    for channel in range(channels):
                        to[channel] += joined[step + tap, channel] * kernel[tap, channel]
        layer_norm(normed, norm[0], norm[1], weights.eps, normed)
        _multiply_tiles(normed, weights.up, layer, inner)
        gelu(inner)
        _multiply_tiles(inner, weights.down, layer, branch)
        add(x, branch)


@in_any_order
def _dot(first, second):
    total = f32(0)
    for k in range(first.shape[0]):
        total += first[k] * second[k]
    return total


@in_order
def _attend(query, joined, first, end, scores, out):
    """Attend from `query` [H, D] to the positions from `first` up to `end` of `joined` [S, 2 G, D], keys then values.

    The result is put into `out` [H D]. `scores` [S] is scratch space.
    """
    heads, size = query.shape
    groups = joined.shape[1] // 2
    scale = f32(1) / np.sqrt(f32(size))
    for head in range(heads):
        group = head // (heads // groups)
        top = f32(-np.inf)
        for position in range(first, end):
            scores[position] = _dot(query[head], joined[position, group]) * scale
            top = scores[position] if not scores[position] <= top else top
        total = f32(0)
        to = out[head * size : (head + 1) * size]
        for d in range(size):
            to[d] = f32(0)
        for position in range(first, end):
            share, value = exp(scores[position] - top), joined[position, groups + group]
            total += share
            for d in range(size):
                to[d] += share * value[d]
        for d in range(size):
            to[d] /= total


@in_order
def window_layers(x, layers, norm, past, slots, starts, rope):
    """Run x [R, W] through transformer layers and a norm [W], in place; a step attends to the P steps before it.

    `past` [L, slots, P, 2 G, D] has keys and values. `starts` [B] are the positions of the streams' first steps.
    `rope` [positions, D / 2, 2] has cos and sin.
    """
    rows, heads = x.shape[0], layers.num_heads
    _, _, context, pairs, size = past.shape
    steps, groups = rows // slots.shape[0], pairs // 2
    normed, branch = np.empty_like(x), np.empty_like(x)
    qkv = np.empty((rows, (heads + pairs) * size), np.float32)
    attended = np.empty((rows, heads * size), np.float32)
    both = np.empty((rows, layers.both.bias.shape[1]), np.float32)
    activated = np.empty((rows, both.shape[1] // 2), np.float32)
    joined = np.empty((context + steps, pairs, size), np.float32)
    scores = np.empty(context + steps, np.float32)
    for layer in range(past.shape[0]):
        rms_norm(x, layers.attention_norm[layer], layers.eps, normed)
        multiply(normed, layers.qkv, layer, qkv)
        for stream in range(slots.shape[0]):
            first, start, saved = stream * steps, starts[stream], past[layer, slots[stream]]
            joined[:context] = saved
            for step in range(steps):
                parts = qkv[first + step].reshape((heads + pairs, size))
                apply_rope(parts[: heads + groups], rope[start + step])
                joined[context + step] = parts[heads:]
            saved[:] = joined[steps:]
            for step in range(steps):
                query = qkv[first + step, : heads * size].reshape((heads, size))
                visible = max(step, context - start)  # nothing before the start of the stream
                _attend(query, joined, visible, context + step + 1, scores, attended[first + step])
        multiply(attended, layers.out, layer, branch)
        add(x, branch)
        rms_norm(x, layers.ffn_norm[layer], layers.eps, normed)
        multiply(normed, layers.both, layer, both)
        swiglu(both, activated)
        multiply(activated, layers.down, layer, branch)
        add(x, branch)
    rms_norm(x, norm, layers.eps, x)


@in_order
def spectra(x, norm, part, eps, most, out):
    """Put the spectra of x [R, C] into `out` [R, N + 2]: the real and the imaginary part of each frequency in turn.

    `norm` is [2, C]; the product `part` returns log amplitudes, which are limited to `most`, then phases.
    """
    normed = np.empty_like(x)
    polar = np.empty_like(out)
    layer_norm(x, norm[0], norm[1], eps, normed)
    _multiply_tiles(normed, part, 0, polar)
    size = out.shape[1] // 2
    rounder = f32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number
    for row in range(out.shape[0]):
        for n in range(size):
            amplitude, angle = min(exp(polar[row, n]), f32(most)), polar[row, size + n]
            # Both functions change their sign after half a turn. The series are Cephes' (Moshier), up to π / 4 there.
            quarters = (angle * f32(0.6366197723675814) + rounder) - rounder
            rest = angle - quarters * f32(1.5703125) - quarters * f32(4.837512969970703e-4)
            rest -= quarters * f32(7.549789948768648e-8)
            square = rest * rest
            sine = f32(-1.9515295891e-4) * square + f32(8.3321608736e-3)
            sine = (sine * square - f32(1.6666654611e-1)) * square * rest + rest
            cosine = f32(2.443315711809948e-5) * square - f32(1.388731625493765e-3)
            cosine = (cosine * square + f32(4.166664568298827e-2)) * square * square - f32(0.5) * square + f32(1)
            turn = np.int32(quarters) & np.int32(3)
            is_odd = (turn & np.int32(1)) == np.int32(1)
            real = sine if is_odd else cosine
            imaginary = cosine if is_odd else sine
            out[row, 2 * n] = -amplitude * real if turn == np.int32(1) or turn == np.int32(2) else amplitude * real
            out[row, 2 * n + 1] = -amplitude * imaginary if turn >= np.int32(2) else amplitude * imaginary


@in_order
def overlap_add(windows, shape, past, slots, begins, out):
    """Put overlapping `windows` [R, N], each multiplied by `shape` [N], into samples `out` [B, T hop]."""
    steps, size, context = windows.shape[0] // slots.shape[0], windows.shape[1], past.shape[1]
    hop = size // (context + 1)
    joined = np.empty((context + steps, size), np.float32)
    shaped = np.empty((steps, size), np.float32)
    for stream in range(slots.shape[0]):
        for step in range(steps):
            for n in range(size):
                shaped[step, n] = windows[stream * steps + step, n] * shape[n]
        _extend(shaped, past, slots[stream], begins[stream], joined)
        for step in range(steps):
            for n in range(hop):
                total = f32(0)
                for part in range(context, -1, -1):
                    total += joined[step + context - part, part * hop + n]
                out[stream, step * hop + n] = total


def compile_for(formats: Sequence[str]) -> None:
    """Compile the functions for these formats, and cache them.

    Each format consists of a function's name and the formats of the weights of its products.
    """
    one, whole, first = np.zeros((1, 1), np.float32), np.zeros(1, np.int64), np.zeros(1, np.bool_)
    cube = one[None]
    _compile(overlap_add, one, one[0], cube, whole, first, one)
    for each in formats:
        name, *dtypes = each.split()
        parts = [Product(np.zeros((1, 1), dtype), one, one) for dtype in dtypes]
        if name == "window_layers":
            qkv, out, both, down = parts
            layers = Layers(one, qkv, cube, out, one, both, down, 1, 1.0)
            _compile(window_layers, one, layers, one[0], cube[None, None], whole, whole, cube)
        elif name == "blocks":
            up, down = parts
            _compile(blocks, one, 1, Blocks(cube, one, cube, up, down, 1.0), cube[None], whole, first)
        elif name == "spectra":
            _compile(spectra, one, one, *parts, 1.0, 1.0, one)
        else:
            _compile(convolve, one, *parts, cube, whole, first, one)


def _compile(function, *arguments):
    function.compile(tuple(numba.typeof(each) for each in arguments))
