"""Parts of a frame of a codec language model: embedding, both transformers, and the logits of every code.

The `make_frame` of a family calls them in order, except for `prefill`, and samples between them. The results match
those of the network in torch, except for the last bits.
Shapes: R rows, P positions of a prompt, B slots, K codebooks, W width, F width of the depth transformer, V codes of a
codebook, D head size, S positions, T tables: one for all codebooks of the depth transformer, or one for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.layers import Layers, multiply, rms_norm, step_layers
from s1_mini.kernels.compiled.multiply import f32
from s1_mini.kernels.compiled.product import Product


class Weights(NamedTuple):
    """All weights of a checkpoint. Each `Product` outside the layers holds one matrix, or T."""

    token_table: np.ndarray  # float32 [tokens, W]
    code_table: np.ndarray  # float32 [K V or more, W]
    with_codes: tuple[int, int]  # first and last token to which codes are added
    rope: np.ndarray  # float32 [S, D / 2, 2]
    backbone: Layers
    norm: np.ndarray  # [W]
    output: Product
    project_in: Product  # no blocks if both transformers have the same width
    depth_embeddings: np.ndarray  # float32 [T, V, F]
    depth_rope: np.ndarray  # float32 [K, D / 2, 2]
    depth: Layers
    depth_norm: np.ndarray  # [F]
    depth_output: Product  # T matrices
    norms_depth_input: bool
    num_codes: int  # V
    code_scale: float  # divisor of the sum of a position's embeddings
    eps: float
    depth_eps: float


class State(NamedTuple):
    """The state of B slots, as in `FrameState`; changed in place."""

    keys: np.ndarray
    values: np.ndarray
    depth_keys: np.ndarray
    depth_values: np.ndarray
    tokens: np.ndarray
    position: np.ndarray
    counts: np.ndarray
    kept: np.ndarray  # float32 [B, S] attention weights of the alignment head


class Depth(NamedTuple):
    """The input of the depth transformer in one frame, and scratch space.

    Positions 0 (the backbone's output) and 1 (the first code) are one pass; each later position is another.
    """

    both: np.ndarray  # [2 R, F]: the backbone's output, then the last code
    normed: np.ndarray  # [R, F]
    logits: np.ndarray  # [R, V]
    slots: np.ndarray  # [2 R]
    positions: np.ndarray  # [2 R]
    lengths: np.ndarray  # [2 R]
    rope: np.ndarray  # [2 R, D / 2, 2]


@in_order
def _embed(tokens, weights, out):
    """Embed the tokens of a position [K + 1], semantic or text token before codes."""
    first, last = weights.with_codes
    for k in range(out.shape[0]):
        out[k] = weights.token_table[tokens[0], k]
    if first <= tokens[0] <= last:
        for book in range(tokens.shape[0] - 1):
            code = book * weights.num_codes + tokens[book + 1]
            for k in range(out.shape[0]):
                out[k] += weights.code_table[code, k]
        for k in range(out.shape[0]):
            out[k] /= f32(weights.code_scale)


@in_order
def _copy(table, indices, out):
    """Copy the rows `indices` [R] of a table into `out` [R, …]."""
    flat, to = table.reshape((table.shape[0], -1)), out.reshape((out.shape[0], -1))
    for row in range(out.shape[0]):
        for k in range(to.shape[1]):
            to[row, k] = flat[indices[row], k]


@in_order
def prefill(x, slot, start, state, weights):
    """Run the backbone on the embeddings x [P, W] of positions start … start + P of a slot, in place."""
    count = x.shape[0]
    positions = np.arange(start, start + count)
    rope = weights.rope[start : start + count]
    slots = np.full(count, slot)
    step_layers(x, weights.backbone, state.keys, state.values, slots, positions, positions + 1, rope, state.kept)


@in_order
def start_frame(slots, state, weights):
    """Run the backbone on the next position of `slots` [R]. Return its output, normed [R, W], and the logits [R, N]."""
    rows = slots.shape[0]
    hidden = np.empty((rows, weights.token_table.shape[1]), np.float32)
    positions, lengths = np.empty(rows, np.int64), np.empty(rows, np.int64)
    for row in range(rows):
        positions[row] = state.position[slots[row]]
        lengths[row] = positions[row] + 1
        _embed(state.tokens[slots[row]], weights, hidden[row])
    rope = np.empty((rows, weights.rope.shape[1], 2), np.float32)
    _copy(weights.rope, positions, rope)
    step_layers(hidden, weights.backbone, state.keys, state.values, slots, positions, lengths, rope, state.kept)
    normed = np.empty_like(hidden)
    rms_norm(hidden, weights.norm, weights.eps, normed)
    logits = np.empty((rows, weights.output.bias.shape[1]), np.float32)
    multiply(normed, weights.output, 0, logits)
    return hidden, normed, logits


@in_order
def start_depth(slots, hidden, normed, weights):
    """Return the input of the depth transformer, from the results of `start_frame`."""
    rows, width = slots.shape[0], weights.depth_embeddings.shape[2]
    start = normed if weights.norms_depth_input else hidden
    if weights.project_in.weight.shape[0] > 0:
        projected = np.empty((rows, width), np.float32)
        multiply(start, weights.project_in, 0, projected)
        start = projected
    depth = Depth(
        np.empty((2 * rows, width), np.float32),
        np.empty((rows, width), np.float32),
        np.empty((rows, weights.depth_output.bias.shape[1]), np.float32),
        np.empty(2 * rows, np.int64),
        np.empty(2 * rows, np.int64),
        np.empty(2 * rows, np.int64),
        np.empty((2 * rows, weights.depth_rope.shape[1], 2), np.float32),
    )
    depth.both[:rows] = start
    for row in range(2 * rows):
        depth.slots[row], depth.positions[row], depth.lengths[row] = slots[row % rows], row // rows, row // rows + 1
    return depth


@in_order
def depth_logits(codebook, codes, state, weights, depth):
    """Return the logits [R, V] of `codebook` (1 … K - 1) after `codes` [R] of the codebook before it.

    `depth` is changed in place. The codebooks of a frame must be computed in order.
    """
    rows = codes.shape[0]
    x = depth.both[rows:]
    _copy(weights.depth_embeddings[min(codebook, weights.depth_embeddings.shape[0]) - 1], codes, x)
    if codebook > 1:
        for row in range(rows, 2 * rows):
            depth.positions[row], depth.lengths[row] = codebook, codebook + 1
    _copy(weights.depth_rope, depth.positions, depth.rope)
    first = 0 if codebook == 1 else rows
    step_layers(
        depth.both[first:], weights.depth, state.depth_keys, state.depth_values, depth.slots[first:],
        depth.positions[first:], depth.lengths[first:], depth.rope[first:], state.kept,
    )  # fmt: skip
    rms_norm(x, weights.depth_norm, weights.depth_eps, depth.normed)
    table = min(codebook, weights.depth_output.weight.shape[0]) - 1
    multiply(depth.normed, weights.depth_output, table, depth.logits)
    return depth.logits


@in_order
def end_frame(slots, frames, state):
    """Store the tokens of `frames` [R, K + 3] as the next input of `slots` [R]."""
    for row in range(slots.shape[0]):
        slot = slots[row]
        for book in range(state.tokens.shape[1]):
            state.tokens[slot, book] = frames[row, book]
        state.position[slot] += 1
        state.counts[slot] += 1


ONE, THREE = np.zeros((1, 1), np.float32), np.zeros((1, 1, 2), np.float32)  # placeholders
WHOLE = np.zeros(1, np.int64)


def weights_of(formats: Sequence[str]) -> Weights:
    """Return placeholder weights, whose types numba compiles for; `formats` has the format of each product."""
    names = iter(formats)
    return Weights(
        ONE, ONE, (0, 0), THREE, _layers(names), ONE[0], _product(names), _product(names), THREE, THREE,
        _layers(names), ONE[0], _product(names), False, 1, 1.0, 1.0, 1.0,
    )  # fmt: skip


def state_of() -> State:
    """Return a state to compile for."""
    cache = np.zeros((1, 1, 1, 1, 2), np.float32)
    return State(cache, cache, cache, cache, np.zeros((1, 1), np.int64), WHOLE, WHOLE, ONE)


def compile_frame(make_frame: Any, state: Any, weights: Weights, *others: Any) -> None:
    """Compile a family's frame and `prefill` for these arguments, and cache them; `state.frame` is a `State`."""
    make_frame.compile(tuple(numba.typeof(each) for each in (WHOLE, state, weights, *others)))
    prefill.compile(tuple(numba.typeof(each) for each in (ONE, 0, 0, state.frame, weights)))


def _product(names: Iterator[str]) -> Product:
    return Product(np.zeros((1, 1), next(names)), ONE, ONE)


def _layers(names: Iterator[str]) -> Layers:
    return Layers(ONE, _product(names), THREE, _product(names), ONE, _product(names), _product(names), 1, 1.0, 0, 0)
