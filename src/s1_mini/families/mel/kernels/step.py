"""A step of a mel decoder in one compiled call: prenet, layers, heads.

The results equal those of the torch network except for rounding.
Shapes: R rows, B slots, L layers, W width, M mel bins, U prenet units, P prenet layers, H heads, D head size, S steps,
T tokens, F frames per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.layers import add, attend, exp, gelu, layer_norm
from s1_mini.kernels.compiled.multiply import f32, product
from s1_mini.kernels.compiled.product import Product


class Layers(NamedTuple):
    """Decoder layers: self-attention, attention to the text, feed-forward, each followed by a norm."""

    qkv: Product
    out: Product
    text_query: Product
    text_out: Product
    inner: Product
    outer: Product
    norms: np.ndarray  # [L, 3, 2, W] weights and biases
    kept_layer: int = -1  # layer of the head whose attention to the text is kept; -1: none
    kept_head: int = 0


class Weights(NamedTuple):
    """All weights of a step. Each product outside the layers has a single block, except `others`."""

    first: Product  # first prenet layer, M inputs
    others: Product  # the other P - 1 prenet layers
    last: Product  # final prenet layer
    joined: Product  # part of the layer that adds the speaker: the weights of the prenet's output
    layers: Layers
    frames: Product
    ends: Product
    positions: np.ndarray  # float32 [S, W] position vectors, already scaled
    eps: float
    num_heads: int
    kept_scale: float  # factor of units that dropout keeps
    threshold: float  # sum of a step's stop probabilities that ends the utterance


class State(NamedTuple):
    """The tensors of `model.MelState` as arrays, which a step changes in place."""

    keys: np.ndarray
    values: np.ndarray
    text_keys: np.ndarray
    text_values: np.ndarray
    kept: np.ndarray  # bool [B, S, P U]; [B, 0, 0] without dropout
    speaker: np.ndarray
    frame: np.ndarray
    position: np.ndarray
    last_token: np.ndarray
    min_steps: np.ndarray
    text_weights: np.ndarray  # float32 [B, T] attention of the kept head, not normalized


@in_order
def _activate(x, slots, state, number, kept_scale):
    """Apply ReLU and dropout, in place, to the output x [R, U] of prenet layer `number`."""
    size = x.shape[1]
    for row in range(x.shape[0]):
        slot = slots[row]
        for n in range(size):
            x[row, n] = max(x[row, n], f32(0))
        if state.kept.shape[1] > 0:
            kept = state.kept[slot, min(state.position[slot], state.kept.shape[1] - 1)]
            for n in range(size):
                x[row, n] *= f32(kept_scale) if kept[number * size + n] else f32(0)


@in_order
def _embed(slots, state, weights, x):
    """Write the decoder's input to x [R, W]."""
    rows = x.shape[0]
    activated = np.empty((rows, weights.first.bias.shape[1]), np.float32)
    other = np.empty_like(activated)
    frames = np.empty((rows, state.frame.shape[1]), np.float32)
    for row in range(rows):
        for n in range(frames.shape[1]):
            frames[row, n] = state.frame[slots[row], n]
    product(frames, weights.first.weight[0], weights.first.scale[0], weights.first.bias[0], activated)
    _activate(activated, slots, state, 0, weights.kept_scale)
    parts = weights.others
    for number in range(parts.weight.shape[0]):
        product(activated, parts.weight[number], parts.scale[number], parts.bias[number], other)
        _activate(other, slots, state, number + 1, weights.kept_scale)
        activated, other = other, activated
    y = np.empty_like(x)
    product(activated, weights.last.weight[0], weights.last.scale[0], weights.last.bias[0], y)
    for row in range(rows):
        position = min(state.position[slots[row]], weights.positions.shape[0] - 1)
        for n in range(y.shape[1]):
            y[row, n] += weights.positions[position, n]
    product(y, weights.joined.weight[0], weights.joined.scale[0], weights.joined.bias[0], x)
    for row in range(rows):
        for n in range(y.shape[1]):
            x[row, n] = max(x[row, n] + state.speaker[slots[row], n], f32(0))


@in_order
def make_step(slots, state, weights, output):  # noqa: C901 - nested loops are one kernel
    """Compute the next frames of each slot of `slots` int64 [R] into `output` float32 [R, F M + 2].

    The last two numbers of a row say whether the utterance ends, and whether all numbers were finite.
    """
    rows, layers = slots.shape[0], weights.layers
    x = np.empty((rows, weights.positions.shape[1]), np.float32)
    _embed(slots, state, weights, x)
    width, heads = x.shape[1], weights.num_heads
    size = width // heads
    qkv, query = np.empty((rows, 3 * width), np.float32), np.empty((rows, width), np.float32)
    attended, branch = np.empty_like(query), np.empty_like(query)
    inner = np.empty((rows, layers.inner.bias.shape[1]), np.float32)
    scores = np.empty((heads, max(state.keys.shape[3], state.text_keys.shape[3])), np.float32)
    for layer in range(layers.qkv.weight.shape[0]):
        norms = layers.norms[layer]
        product(x, layers.qkv.weight[layer], layers.qkv.scale[layer], layers.qkv.bias[layer], qkv)
        for row in range(rows):
            slot = slots[row]
            position = state.position[slot]
            keys, values = state.keys[layer, slot], state.values[layer, slot]
            for head in range(heads):
                for d in range(size):
                    keys[head, position, d] = qkv[row, width + head * size + d]
                    values[head, position, d] = qkv[row, 2 * width + head * size + d]
            attend(qkv[row, :width].reshape((heads, size)), keys, values, position + 1, scores, attended[row])
        product(attended, layers.out.weight[layer], layers.out.scale[layer], layers.out.bias[layer], branch)
        add(x, branch)
        layer_norm(x, norms[0, 0], norms[0, 1], weights.eps, x)
        parts = layers.text_query
        product(x, parts.weight[layer], parts.scale[layer], parts.bias[layer], query)
        for row in range(rows):
            slot = slots[row]
            keys, values = state.text_keys[layer, slot], state.text_values[layer, slot]
            length = state.last_token[slot] + 1
            attend(query[row].reshape((heads, size)), keys, values, length, scores, attended[row])
            if layer == layers.kept_layer:
                for token in range(length):
                    state.text_weights[slot, token] = scores[layers.kept_head, token]
        parts = layers.text_out
        product(attended, parts.weight[layer], parts.scale[layer], parts.bias[layer], branch)
        add(x, branch)
        layer_norm(x, norms[1, 0], norms[1, 1], weights.eps, x)
        product(x, layers.inner.weight[layer], layers.inner.scale[layer], layers.inner.bias[layer], inner)
        gelu(inner)
        product(inner, layers.outer.weight[layer], layers.outer.scale[layer], layers.outer.bias[layer], branch)
        add(x, branch)
        layer_norm(x, norms[2, 0], norms[2, 1], weights.eps, x)
    bins, last = state.frame.shape[1], output.shape[1] - 2
    product(x, weights.frames.weight[0], weights.frames.scale[0], weights.frames.bias[0], output[:, :last])
    ends = np.empty((rows, weights.ends.bias.shape[1]), np.float32)
    product(x, weights.ends.weight[0], weights.ends.scale[0], weights.ends.bias[0], ends)
    for row in range(rows):
        slot = slots[row]
        total, not_finite = f32(0), 0
        for n in range(ends.shape[1]):
            total += f32(1) / (f32(1) + exp(-ends[row, n]))
            not_finite += 0 if abs(ends[row, n]) < f32(np.inf) else 1
        for n in range(last):
            not_finite += 0 if abs(output[row, n]) < f32(np.inf) else 1
        output[row, last] = total >= f32(weights.threshold) and state.position[slot] + 1 >= state.min_steps[slot]
        output[row, last + 1] = not_finite == 0
        for n in range(bins):
            state.frame[slot, n] = output[row, last - bins + n]
        state.position[slot] += 1


def compile_for(formats: Sequence[str]) -> None:
    """Compile `make_step` for layers with weights of these formats, and cache it."""
    one = np.zeros((1, 1), np.float32)

    def product_of(dtype: str = "float32") -> Product:
        return Product(np.zeros((1, 1), dtype), one, one)

    cache = np.zeros((1, 1, 1, 1, 1), np.float32)
    qkv, out, text_query, text_out, inner, outer = (product_of(dtype) for dtype in formats)
    layers = Layers(qkv, out, text_query, text_out, inner, outer, np.zeros((1, 1, 1, 1), np.float32))
    weights = Weights(
        product_of(),
        product_of(),
        product_of(),
        product_of(),
        layers,
        product_of(),
        product_of(),
        one,
        1.0,
        1,
        1.0,
        1.0,
    )
    whole, kept = np.zeros(1, np.int64), np.zeros((1, 1, 1), np.bool_)
    state = State(cache, cache, cache, cache, kept, one, one, whole, whole, whole, one)
    make_step.compile(tuple(numba.typeof(each) for each in (whole, state, weights, one)))
