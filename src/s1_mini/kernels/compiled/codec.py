"""The layers of a causal codec's decoder, for the next steps of one stream, by one thread.

Inputs follow their past: x [P + T, C] has the last P steps of the previous call, then T new steps.
Shapes: T steps, P steps of past, C channels, N outputs; H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.epilogue import finish
from s1_mini.kernels.compiled.int16 import TILE_SUMS, quantize_steps, sum_steps
from s1_mini.kernels.compiled.layers import apply_rope, dot, exp, gelu, layer_norm, rms_norm, swiglu
from s1_mini.kernels.compiled.multiply import MOST_SUMS, f32, sum_rows
from s1_mini.kernels.compiled.product import BLOCK, Int16Product, Product


@in_order
def _copy(x, out):
    """Copy x [N]; slices that are assigned instead take numba seconds to compile."""
    for k in range(x.shape[0]):
        out[k] = x[k]


@in_order
def _put_terms(first, size, scale, bias, snake, out):
    """Put the terms of `finish` for `size` outputs from `first` into `out` [4, BLOCK]."""
    for n in range(size):
        out[0, n], out[1, n] = scale[first + n], bias[first + n]
        if snake.shape[0] > 0:
            out[2, n], out[3, n] = snake[0, first + n], snake[1, first + n]


@in_order
def convolve(x, shape, part, skip, keeps, snake, out):
    """Put a convolution of x [P + T, C], plus `skip`, into the last T N numbers of `out`.

    `shape` is the number of taps and the dilation. `skip` [T N] is added if it is not empty. If `keeps` is not empty,
    it also gets the sum, and may be `skip`. If `snake` [2, N], α and 1 / β, is not empty, `out` gets Snake of the sum.
    """
    weight, scale, bias = part.weight[0], part.scale[0], part.bias[0]
    steps, inputs, outputs = x.shape[0] - (shape[0] - 1) * shape[1], shape[0] * x.shape[1], bias.shape[0]
    skip, keeps, out = skip.reshape(-1), keeps.reshape(-1), out.reshape(-1)
    out = out[out.shape[0] - steps * outputs :]
    sums, terms = np.empty(MOST_SUMS, np.float32), np.zeros((4, BLOCK), np.float32)
    for first in range(0, outputs, BLOCK):
        size = min(BLOCK, outputs - first)
        _put_terms(first, size, scale, bias, snake, terms)
        row = 0
        while row < steps:
            count, width = sum_rows(x, row, shape, weight, first * inputs, size, sums)
            at = row * outputs + first
            finish(sums, width, count, size, terms, skip, keeps, snake.shape[0] > 0, out, at, outputs)
            row += count


@in_order
def convolve_int16(x, shape, part, skip, keeps, snake, out):
    """Do the same as `convolve` with an `Int16Product`."""
    steps, inputs, outputs = x.shape[0] - (shape[0] - 1) * shape[1], shape[0] * x.shape[1], part.bias.shape[0]
    skip, keeps, out = skip.reshape(-1), keeps.reshape(-1), out.reshape(-1)
    out = out[out.shape[0] - steps * outputs :]
    quantized, scales = np.empty(x.shape, np.int16), np.empty(x.shape[0], np.float32)
    quantize_steps(x, part.gain, quantized, scales)
    sums, terms = np.empty(TILE_SUMS, np.float32), np.zeros((4, BLOCK), np.float32)
    for first in range(0, outputs, BLOCK):
        size = min(BLOCK, outputs - first)
        _put_terms(first, size, part.scale, part.bias, snake, terms)
        row = 0
        while row < steps:
            count = sum_steps(quantized, scales, row, shape, part.weight, first * inputs, size, sums)
            at = row * outputs + first
            finish(sums, BLOCK, count, size, terms, skip, keeps, snake.shape[0] > 0, out, at, outputs)
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
    """Compile the functions, and the convolutions of `formats`, such as "convolve int8", and cache them."""
    one = np.zeros((1, 1), np.float32)
    cube = one[None]
    _compile(window_attention, cube, cube, 0, cube, one)
    _compile(depthwise, one, one, one[0], one, 1.0, one)
    _compile(rms_norm, one, one[0], 1.0, one)
    _compile(swiglu, one, one)
    _compile(gelu, one)
    for name in formats:
        kernel, dtype = name.split()
        if kernel == "convolve":
            _compile(convolve, one, (1, 1), Product(np.zeros((1, 1), dtype), one, one), one, one, one, one)
        else:
            part = Int16Product(np.zeros(1, dtype), one[0], one[0], one[0])
            _compile(convolve_int16, one, (1, 1), part, one, one, one, one)


def _compile(function, *arguments):
    function.compile(tuple(numba.typeof(each) for each in arguments))
