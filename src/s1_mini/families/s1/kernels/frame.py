"""A whole frame of S1 in one compiled call: a column embedded, both transformers, all of a frame's tokens drawn.

The results are those of `columns`, `draw` and the network in torch, except for the last bits.
Shapes: R rows, B slots, K codebooks, W width, F width of the depth transformer, V codes of a book, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.layers import Layers, exp, f32, product, rms_norm, step_layers, sum_of
from s1_mini.kernels.compiled.product import Product

WHOLE = 1 << 31  # as in `draw`, and so the next two
MIN_TEMPERATURE = 1e-5
WINDOW = 16


class Weights(NamedTuple):
    """All weights of a checkpoint; products that are not in layers are stacks of one."""

    main: np.ndarray  # float32 [tokens, W]
    codes: np.ndarray  # float32 [K V, W]
    rope: np.ndarray  # float32 [S, D / 2, 2]
    slow: Layers
    norm: np.ndarray  # [W]
    output: Product
    project_in: Product  # of no layers if the widths are the same
    fast_embeddings: np.ndarray  # float32 [V, F]
    fast_rope: np.ndarray  # float32 [K, D / 2, 2]
    fast: Layers
    fast_norm: np.ndarray  # [F]
    fast_output: Product
    norms_fast_input: bool
    code_scale: float  # that the sum of a column's embeddings is divided by
    eps: float
    fast_eps: float


class State(NamedTuple):
    """The state of B slots, as `model.S1State` describes it. Changed in place."""

    keys: np.ndarray
    values: np.ndarray
    fast_keys: np.ndarray
    fast_values: np.ndarray
    history: np.ndarray
    column: np.ndarray
    position: np.ndarray
    counts: np.ndarray
    penalty: np.ndarray
    temperature: np.ndarray
    top_p: np.ndarray
    uniforms: np.ndarray


class Rules(NamedTuple):
    """Vocabulary and penalty mode."""

    first: int  # semantic token
    last: int
    end: int
    num_codes: int
    restricted: bool
    as_meant: bool


@in_order
def _soften(logits, top, coldness, kept, masses, shares):
    """Put the softmax of kept logits, (logits - top) * coldness, as whole numbers into `masses` [V]."""
    for token in range(logits.shape[0]):
        share = exp((logits[token] - top) * coldness)
        shares[token] = share if kept[token] else f32(0)
    total = sum_of(shares)
    for token in range(logits.shape[0]):
        masses[token] = np.uint32(np.int64(shares[token] / total * f32(WHOLE)))


@in_order
def _mass_from(keys, masses, least):
    total = np.uint32(0)
    for token in range(keys.shape[0]):
        total += masses[token] if keys[token] >= least else np.uint32(0)
    return total


@in_order
def _order(logits, keys):
    """Put whole numbers into `keys` [V] that are in the order of the logits."""
    for token in range(logits.shape[0]):
        bits = np.float32(logits[token] + f32(0)).view(np.uint32)  # one zero, not two
        keys[token] = ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@in_order
def _likeliest(keys):
    likeliest = 0
    for token in range(keys.shape[0]):
        likeliest = token if keys[token] > keys[likeliest] else likeliest
    return likeliest


@in_order
def draw(logits, temperature, top_p, uniform):
    """Draw a token by `logits` [V], as `draw.probabilities` and `draw.draw` do, without a sort.

    If a penalty has made logits infinite, the result is an arbitrary token.
    """
    size = logits.shape[0]
    keys, masses = np.empty(size, np.uint32), np.empty(size, np.uint32)
    shares, kept = np.empty(size, np.float32), np.empty(size, np.bool_)
    for token in range(size):
        kept[token] = True
    _order(logits, keys)
    likeliest = _likeliest(keys)
    top = logits[likeliest]
    _soften(logits, top, f32(1), kept, masses, shares)
    bound = np.uint32(np.int64(top_p * f32(WHOLE)))
    edge = np.uint32(0)  # the highest key whose tokens, with all above, are more than the nucleus
    for bit in range(31, -1, -1):
        higher = edge | np.uint32(1 << bit)
        if _mass_from(keys, masses, higher) > bound:
            edge = higher
    mass = np.uint32(0)
    for token in range(size):
        mass += masses[token] if keys[token] > edge else np.uint32(0)
    for token in range(size):
        if keys[token] == edge:
            mass += masses[token]
            kept[token] = mass <= bound
        else:
            kept[token] = keys[token] > edge
    kept[likeliest] = True
    _soften(logits, top, f32(1) / max(temperature, f32(MIN_TEMPERATURE)), kept, masses, shares)
    total = np.int64(0)
    for token in range(size):
        total += masses[token]
    goal = min((np.int64(uniform * f32(1 << 24)) * total) >> 24, total - 1)
    mass = np.uint32(0)
    for token in range(size):
        mass += masses[token]
        if mass > goal:
            return token
    return size - 1


@in_order
def _penalise(logits, token, penalty, hit):
    """Penalise a token once."""
    if 0 <= token < logits.shape[0] and not hit[token]:
        hit[token] = True
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty


@in_order
def _is_finite(x):
    wrong = 0
    for place in range(x.shape[0]):
        wrong += 0 if abs(x[place]) < f32(np.inf) else 1
    return wrong == 0


@in_order
def _penalise_all(logits, past, count, column, first, last, restricted, as_meant, penalty):
    """Penalise the tokens in `past` [W, K + 1] as `draw.RepetitionWindow` describes; the main token if `column` is 0.

    Only main tokens from `first` to `last` count where the head is `restricted` to them.
    """
    hit = np.zeros(logits.shape[0], np.bool_)
    if column == 0 and not as_meant:
        if count < 1:
            return
        frame = (count - 1) % WINDOW if count - 1 >= WINDOW else 0
        for place in range(past.shape[1]):
            token = past[frame, place]
            if not restricted or first <= token <= last:
                _penalise(logits, token - first if restricted else token, penalty, hit)
        return
    recorded = min(count, WINDOW) if as_meant else WINDOW if count >= 1 else 0
    for frame in range(recorded):
        token = past[frame, column]
        if column > 0 or not restricted:
            _penalise(logits, token, penalty, hit)
        elif first <= token <= last:
            _penalise(logits, token - first, penalty, hit)


@in_order
def _choose(logits, state, slot, codebook, first, last, restricted, as_meant):
    """Draw a token of a slot's frame by `logits` [V], which it changes; -1 if they are not finite."""
    if not _is_finite(logits):
        return -1
    count = state.counts[slot]
    if restricted and count == 0:
        logits[logits.shape[0] - 1] = f32(-np.inf)
    column = codebook + 1 if codebook > 0 else 0
    _penalise_all(logits, state.history[slot], count, column, first, last, restricted, as_meant, state.penalty[slot])
    return draw(logits, state.temperature[slot], state.top_p[slot], state.uniforms[slot, count, codebook])


@in_order
def _embed(column, main, codes, first, last, scale, out):
    """Embed a column [K + 1], main token before codes."""
    size = codes.shape[0] // (column.shape[0] - 1)
    for k in range(out.shape[0]):
        out[k] = main[column[0], k]
    if first <= column[0] <= last:
        for book in range(column.shape[0] - 1):
            code = book * size + column[book + 1]
            for k in range(out.shape[0]):
                out[k] += codes[code, k]
        for k in range(out.shape[0]):
            out[k] /= f32(scale)


@in_order
def _copy(source, places, out):
    """Put rows `places` [R] of a table into `out` [R, …], all [.., N] or [.., N, 2]."""
    flat, to = source.reshape((source.shape[0], -1)), out.reshape((out.shape[0], -1))
    for row in range(out.shape[0]):
        for k in range(to.shape[1]):
            to[row, k] = flat[places[row], k]


@in_order
def make_frame(slots, state, weights, rules, made):  # noqa: C901, PLR0912 - a call costs as much as a frame's part
    """Compute one frame of each slot of `slots` int64 [R], into `made` int64 [R, K + 3].

    A row is main token, codes, whether it is the end, whether the logits were finite.
    """
    rows, books = slots.shape[0], made.shape[1] - 3
    hidden = np.empty((rows, weights.main.shape[1]), np.float32)
    positions, lengths = np.empty(rows, np.int64), np.empty(rows, np.int64)
    for row in range(rows):
        slot = slots[row]
        positions[row] = state.position[slot]
        lengths[row] = positions[row] + 1
        column = state.column[slot]
        _embed(column, weights.main, weights.codes, rules.first, rules.last, weights.code_scale, hidden[row])
    rope = np.empty((rows, weights.rope.shape[1], 2), np.float32)
    _copy(weights.rope, positions, rope)
    step_layers(hidden, weights.slow, state.keys, state.values, slots, positions, lengths, rope)
    normal = np.empty_like(hidden)
    rms_norm(hidden, weights.norm, weights.eps, normal)
    logits = np.empty((rows, weights.output.weight.shape[2]), np.float32)
    product(normal, weights.output.weight[0], weights.output.scale[0], weights.output.bias[0], logits)
    for row in range(rows):
        slot = slots[row]
        choice = _choose(logits[row], state, slot, 0, rules.first, rules.last, rules.restricted, rules.as_meant)
        valid = choice >= 0
        choice = max(choice, 0)
        stops = choice == rules.end and state.counts[slot] > 0
        if rules.restricted:
            stops = choice == logits.shape[1] - 1
            choice = rules.end if stops else choice + rules.first
        made[row, 0], made[row, books + 1], made[row, books + 2] = choice, stops, valid
        made[row, 1] = min(max(choice - rules.first, 0), rules.num_codes - 1)

    # Positions 0 (the slow output) and 1 (the first code) of each row are one pass; then one position after the other.
    width = weights.fast_embeddings.shape[1]
    start = normal if weights.norms_fast_input else hidden
    if weights.project_in.weight.shape[0] > 0:
        projected = np.empty((rows, width), np.float32)
        into = weights.project_in
        product(start, into.weight[0], into.scale[0], into.bias[0], projected)
        start = projected
    both = np.empty((2 * rows, width), np.float32)
    x, normal = both[rows:], np.empty((rows, width), np.float32)
    for row in range(rows):
        for k in range(width):
            both[row, k] = start[row, k]
    logits = np.empty((rows, weights.fast_output.weight.shape[2]), np.float32)
    whose, places, ends = np.empty(2 * rows, np.int64), np.empty(2 * rows, np.int64), np.empty(2 * rows, np.int64)
    rope = np.empty((2 * rows, weights.fast_rope.shape[1], 2), np.float32)
    for row in range(2 * rows):
        whose[row], places[row], ends[row] = slots[row % rows], row // rows, row // rows + 1
    for codebook in range(1, books):
        _copy(weights.fast_embeddings, made[:, codebook], x)
        _copy(weights.fast_rope, places, rope)
        first = 0 if codebook == 1 else rows
        step_layers(
            both[first:], weights.fast, state.fast_keys, state.fast_values, whose[first:], places[first:],
            ends[first:], rope[first:],
        )  # fmt: skip
        rms_norm(x, weights.fast_norm, weights.fast_eps, normal)
        product(
            normal, weights.fast_output.weight[0], weights.fast_output.scale[0], weights.fast_output.bias[0], logits
        )
        for row in range(rows):
            choice = _choose(logits[row], state, slots[row], codebook, 0, 0, False, rules.as_meant)
            if choice < 0:
                made[row, books + 2] = 0
            made[row, codebook + 1] = max(choice, 0)
        for row in range(rows, 2 * rows):
            places[row], ends[row] = codebook + 1, codebook + 2

    skipped = 0 if rules.as_meant else 1
    for row in range(rows):
        slot = slots[row]
        count = state.counts[slot]
        for book in range(books + 1):
            if count >= skipped:
                state.history[slot, (count - skipped) % WINDOW, book] = made[row, book]
            state.column[slot, book] = made[row, book]
        state.position[slot] += 1
        state.counts[slot] += 1


def compile_for(formats):
    """Compile `make_frame` for weights of these formats, and keep it."""
    left = iter(formats)
    one, three = np.zeros((1, 1), np.float32), np.zeros((1, 1, 2), np.float32)

    def made():
        return Product(np.zeros((1, 1, 1), next(left)), one, one)

    def layers():
        return Layers(one, made(), three, made(), one, made(), made(), 1, 1.0)

    weights = Weights(
        one, one, three, layers(), one[0], made(), made(), one, three, layers(), one[0], made(),
        False, 1.0, 1.0, 1.0,
    )  # fmt: skip
    whole, cache = np.zeros(1, np.int64), np.zeros((1, 1, 1, 1, 2), np.float32)
    state = State(
        cache, cache, cache, cache, np.zeros((1, 1, 1), np.int64), np.zeros((1, 1), np.int64), whole, whole,
        one[0], one[0], one[0], three,
    )  # fmt: skip
    arguments = (whole, state, weights, Rules(0, 0, 0, 1, False, False), np.zeros((1, 1), np.int64))
    make_frame.compile(tuple(numba.typeof(each) for each in arguments))
