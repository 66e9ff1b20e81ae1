"""The layers of a causal codec's decoder, for the next steps of one stream, by one thread.

Inputs follow their past: x [P + T, C] has the last P steps of the previous call, then T new steps.
Shapes: T steps, P steps of past, C channels, N outputs; H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.layers import apply_rope, dot, exp, gelu, layer_norm, rms_norm, swiglu
from s1_mini.kernels.compiled.multiply import MOST_SUMS, f32, sum_rows
from s1_mini.kernels.compiled.product import BLOCK, Product


@in_order
def _copy(x, out):
    """Copy x [N]; slices that are assigned instead take numba seconds to compile."""
    for k in range(x.shape[0]):
        out[k] = x[k]


@in_order
def _snake(x, alpha, inverse, out):
    """Put x + sin²(αx) / β into `out`; all are [N]."""
    rounder = f32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number
    for n in range(x.shape[0]):
        angle = alpha[n] * x[n]
        turns = (angle * f32(0.3183098861837907) + rounder) - rounder  # half turns, because sin² has period π
        rest = angle - turns * f32(3.140625) - turns * f32(9.67502593994140625e-4) - turns * f32(1.5099579909e-7)
        square = rest * rest
        total = f32(2.7557319224e-6) - square * f32(2.5052108385e-8)
        total = f32(-1.9841269841e-4) + square * total
        total = f32(8.3333333333e-3) + square * total
        total = f32(-1.6666666667e-1) + square * total
        wave = rest + rest * square * total
        out[n] = x[n] + wave * wave * inverse[n]


@in_order
def convolve(x, shape, part, skip, keeps, snake, out):  # noqa: C901 - nested loops are one kernel
    """Put a convolution of x [P + T, C], plus `skip`, into the last T N numbers of `out`.

    `shape` is the number of taps and the dilation. `skip` [T N] is added if it is not empty. If `keeps` is not empty,
    it also gets the sum, and may be `skip`. If `snake` [2, N], α and 1 / β, is not empty, `out` gets Snake of the sum.
    """
    weight, scale, bias = part.weight[0], part.scale[0], part.bias[0]
    steps, inputs, outputs = x.shape[0] - (shape[0] - 1) * shape[1], shape[0] * x.shape[1], part.bias.shape[1]
    skip, keeps, out = skip.reshape(-1), keeps.reshape(-1), out.reshape(-1)
    out = out[out.shape[0] - steps * outputs :]
    sums, factor, offset = (
        np.empty(MOST_SUMS, np.float32),
        np.empty(MOST_SUMS, np.float32),
        np.empty(MOST_SUMS, np.float32),
    )
    alpha, inverse = np.empty(MOST_SUMS, np.float32), np.empty(MOST_SUMS, np.float32)
    for first in range(0, outputs, BLOCK):
        size = min(BLOCK, outputs - first)
        for n in range(MOST_SUMS if size == outputs else size):
            factor[n], offset[n] = scale[first + n % size], bias[first + n % size]
            if snake.shape[0] > 0:
                alpha[n], inverse[n] = snake[0, first + n % size], snake[1, first + n % size]
        row = 0
        while row < steps:
            count, width = sum_rows(x, row, shape, weight, first * inputs, size, sums)
            # If a row of `sums` has all outputs of a step, those of consecutive steps are contiguous.
            together = count if width == outputs else 1
            for each in range(0, count, together):
                length, at = together * size, (row + each) * outputs + first
                total, to = sums[each * width : each * width + length], out[at : at + length]
                for n in range(length):
                    total[n] = total[n] * factor[n] + offset[n]
                if skip.shape[0] > 0:
                    added = skip[at : at + length]
                    for n in range(length):
                        total[n] += added[n]
                if keeps.shape[0] > 0:
                    _copy(total, keeps[at : at + length])
                if snake.shape[0] > 0:
                    _snake(total, alpha, inverse, to)
                else:
                    _copy(total, to)
            row += count


@in_order
def depthwise(x, weight, bias, norm, eps, out):
    """Put a depthwise convolution of x [P + T, C], then a layer norm [2, C], into `out` [T, C].

    `weight` is [taps, C]; `bias` is [C]. `norm` has weight and bias.
    """
    for step in range(out.shape[0]):
        to = out[step]
        for channel in range(to.shape[0]):
            to[channel] = bias[channel]
        for tap in range(weight.shape[0]):
            seen, factor = x[step + tap], weight[tap]
            for channel in range(to.shape[0]):
                to[channel] += seen[channel] * factor[channel]
    layer_norm(out, norm[0], norm[1], eps, out)


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
            scores[position] = dot(query[head], joined[position, group]) * scale
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
def window_attention(qkv, past, start, rope, out):
    """Put the attention of each of `qkv` [T, H + 2 G, D] to itself and to the P steps before it into `out` [T, H D].

    `past` [P, 2 G, D] has keys and values, and gets those of the last P steps. `start` is the position of the first
    step. `rope` [positions, D / 2, 2] has cos and sin.
    """
    context, pairs, size = past.shape
    steps, heads = qkv.shape[0], qkv.shape[1] - pairs
    joined = np.empty((context + steps, pairs, size), np.float32)
    scores = np.empty(context + steps, np.float32)
    joined_rows, past_rows = joined.reshape((-1, pairs * size)), past.reshape((-1, pairs * size))
    qkv_rows = qkv.reshape((steps, -1))
    for position in range(context):
        _copy(past_rows[position], joined_rows[position])
    for step in range(steps):
        apply_rope(qkv[step, : heads + pairs // 2], rope[start + step])
        _copy(qkv_rows[step, heads * size :], joined_rows[context + step])
    for position in range(context):
        _copy(joined_rows[steps + position], past_rows[position])
    for step in range(steps):
        first = max(step, context - start)  # nothing before the start of the stream
        _attend(qkv[step, :heads], joined, first, context + step + 1, scores, out[step])


def compile_for(formats: Sequence[str]) -> None:
    """Compile the functions, and `convolve` for these formats of weights, and cache them."""
    one = np.zeros((1, 1), np.float32)
    cube = one[None]
    _compile(window_attention, cube, cube, 0, cube, one)
    _compile(depthwise, one, one, one[0], one, 1.0, one)
    _compile(rms_norm, one, one[0], 1.0, one)
    _compile(swiglu, one, one)
    _compile(gelu, one)
    for dtype in formats:
        part = Product(np.zeros((1, 1), dtype), one, one)
        _compile(convolve, one, (1, 1), part, one, one, one, one)


def _compile(function, *arguments):
    function.compile(tuple(numba.typeof(each) for each in arguments))
