"""Generate a frame of S1 in one compiled call: embedding, both transformers, and sampling of all tokens.

The results equal those of torch (`kernels/positions.py`, `sampling.py` and the network) except for rounding.
Shapes: R rows, B slots, K codebooks, W width, F width of the depth transformer, V codes of a codebook, D head size,
S positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.layers import Layers, exp, f32, product, rms_norm, step_layers, sum_of
from s1_mini.kernels.compiled.product import Product

# Copies of constants in `ranking` and `sampling`, which this module does not import because they import torch.
SCALE = 1 << 31
MIN_TEMPERATURE = 1e-5
WINDOW = 16


class Weights(NamedTuple):
    """All weights of a checkpoint. Each product outside the layers has a single block."""

    token_table: np.ndarray  # float32 [tokens, W]
    code_table: np.ndarray  # float32 [K V, W]
    rope: np.ndarray  # float32 [S, D / 2, 2]
    backbone: Layers
    norm: np.ndarray  # [W]
    output: Product
    project_in: Product  # no blocks if both transformers have the same width
    depth_embeddings: np.ndarray  # float32 [V, F]
    depth_rope: np.ndarray  # float32 [K, D / 2, 2]
    depth: Layers
    depth_norm: np.ndarray  # [F]
    depth_output: Product
    norms_depth_input: bool
    code_scale: float  # divisor of the sum of a position's embeddings
    eps: float
    depth_eps: float


class State(NamedTuple):
    """The tensors of `model.S1State` and of the slots' sampling parameters as arrays, changed in place."""

    keys: np.ndarray
    values: np.ndarray
    depth_keys: np.ndarray
    depth_values: np.ndarray
    history: np.ndarray
    tokens: np.ndarray
    position: np.ndarray
    counts: np.ndarray
    penalty: np.ndarray
    temperature: np.ndarray
    top_p: np.ndarray
    uniforms: np.ndarray
    kept: np.ndarray  # float32 [B, S] attention weights of the alignment head


class Rules(NamedTuple):
    """Vocabulary and penalty mode; see `sampling.SemanticTokens` and `sampling.RepetitionWindow`."""

    first: int  # the semantic token of code 0
    last: int  # the last semantic token
    end: int
    num_codes: int
    restricted: bool
    is_fixed: bool


@in_order
def _softmax(logits, top, inverse_temperature, kept, masses, shares):
    """Put the softmax of (logits - top) * inverse_temperature of kept tokens, as integers, into `masses` [V]."""
    for token in range(logits.shape[0]):
        share = exp((logits[token] - top) * inverse_temperature)
        shares[token] = share if kept[token] else f32(0)
    total = sum_of(shares)
    for token in range(logits.shape[0]):
        masses[token] = np.uint32(np.int64(shares[token] / total * f32(SCALE)))


@in_order
def _mass_from(keys, masses, least):
    total = np.uint32(0)
    for token in range(keys.shape[0]):
        total += masses[token] if keys[token] >= least else np.uint32(0)
    return total


@in_order
def _order(logits, keys):
    """Put integers with the order of the logits into `keys` [V]."""
    for token in range(logits.shape[0]):
        bits = np.float32(logits[token] + f32(0)).view(np.uint32)  # turns -0 into 0
        keys[token] = ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@in_order
def _likeliest(keys):
    likeliest = 0
    for token in range(keys.shape[0]):
        likeliest = token if keys[token] > keys[likeliest] else likeliest
    return likeliest


@in_order
def sample(logits, temperature, top_p, uniform):
    """Sample a token from `logits` [V] without sorting; same result as `probabilities` and `ranking.sample`.

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
    _softmax(logits, top, f32(1), kept, masses, shares)
    bound = np.uint32(np.int64(top_p * f32(SCALE)))
    edge = np.uint32(0)  # the highest key for which this and all higher keys have more mass than the nucleus
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
    _softmax(logits, top, f32(1) / max(temperature, f32(MIN_TEMPERATURE)), kept, masses, shares)
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
    """Penalise a token, unless `hit` says that it has been penalised already."""
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
def _penalise_all(logits, past, count, index, first, last, restricted, is_fixed, penalty):
    """Penalise the tokens in `past` [WINDOW, K + 1] by the rules of `sampling.RepetitionWindow`.

    `index` is 0 for the semantic token and 1 … K for codes. If the head is `restricted`, only semantic tokens from
    `first` to `last` have logits to penalise.
    """
    hit = np.zeros(logits.shape[0], np.bool_)
    if index == 0 and not is_fixed:
        if count < 1:
            return
        frame = (count - 1) % WINDOW if count - 1 >= WINDOW else 0
        for place in range(past.shape[1]):
            token = past[frame, place]
            if not restricted or first <= token <= last:
                _penalise(logits, token - first if restricted else token, penalty, hit)
        return
    recorded = min(count, WINDOW) if is_fixed else WINDOW if count >= 1 else 0
    for frame in range(recorded):
        token = past[frame, index]
        if index > 0 or not restricted:
            _penalise(logits, token, penalty, hit)
        elif first <= token <= last:
            _penalise(logits, token - first, penalty, hit)


@in_order
def _sample_token(logits, state, slot, codebook, first, last, restricted, is_fixed):
    """Return a token of a slot's frame, sampled from `logits` [V], which are overwritten; -1 if they are not finite."""
    if not _is_finite(logits):
        return -1
    count = state.counts[slot]
    if restricted and count == 0:
        logits[logits.shape[0] - 1] = f32(-np.inf)
    index = codebook + 1 if codebook > 0 else 0
    _penalise_all(logits, state.history[slot], count, index, first, last, restricted, is_fixed, state.penalty[slot])
    return sample(logits, state.temperature[slot], state.top_p[slot], state.uniforms[slot, count, codebook])


@in_order
def _embed(tokens, token_table, code_table, first, last, scale, out):
    """Put the embedding of a position into `out` [W]; `tokens` [K + 1] are the semantic token and the codes."""
    size = code_table.shape[0] // (tokens.shape[0] - 1)
    for k in range(out.shape[0]):
        out[k] = token_table[tokens[0], k]
    if first <= tokens[0] <= last:
        for book in range(tokens.shape[0] - 1):
            code = book * size + tokens[book + 1]
            for k in range(out.shape[0]):
                out[k] += code_table[code, k]
        for k in range(out.shape[0]):
            out[k] /= f32(scale)


@in_order
def _copy(table, indices, out):
    """Copy the rows `indices` [R] of a table into `out` [R, …]."""
    flat, to = table.reshape((table.shape[0], -1)), out.reshape((out.shape[0], -1))
    for row in range(out.shape[0]):
        for k in range(to.shape[1]):
            to[row, k] = flat[indices[row], k]


@in_order
def make_frame(slots, state, weights, rules, frames):  # noqa: C901, PLR0912 - each call would cost time
    """Generate one frame for each of `slots` int64 [R] into `frames` int64 [R, K + 3].

    A row has the semantic token, the codes, whether the utterance ends, and whether the logits were finite.
    """
    rows, books = slots.shape[0], frames.shape[1] - 3
    hidden = np.empty((rows, weights.token_table.shape[1]), np.float32)
    positions, lengths = np.empty(rows, np.int64), np.empty(rows, np.int64)
    for row in range(rows):
        slot = slots[row]
        positions[row] = state.position[slot]
        lengths[row] = positions[row] + 1
        tokens = state.tokens[slot]
        _embed(
            tokens, weights.token_table, weights.code_table, rules.first, rules.last, weights.code_scale, hidden[row]
        )
    rope = np.empty((rows, weights.rope.shape[1], 2), np.float32)
    _copy(weights.rope, positions, rope)
    step_layers(hidden, weights.backbone, state.keys, state.values, slots, positions, lengths, rope, state.kept)
    normed = np.empty_like(hidden)
    rms_norm(hidden, weights.norm, weights.eps, normed)
    logits = np.empty((rows, weights.output.weight.shape[2]), np.float32)
    product(normed, weights.output.weight[0], weights.output.scale[0], weights.output.bias[0], logits)
    for row in range(rows):
        slot = slots[row]
        choice = _sample_token(logits[row], state, slot, 0, rules.first, rules.last, rules.restricted, rules.is_fixed)
        valid = choice >= 0
        choice = max(choice, 0)
        stops = choice == rules.end and state.counts[slot] > 0
        if rules.restricted:
            stops = choice == logits.shape[1] - 1
            choice = rules.end if stops else choice + rules.first
        frames[row, 0], frames[row, books + 1], frames[row, books + 2] = choice, stops, valid
        frames[row, 1] = min(max(choice - rules.first, 0), rules.num_codes - 1)

    # Positions 0 (the backbone's output) and 1 (the first code) share one pass; each later position has its own pass.
    width = weights.depth_embeddings.shape[1]
    start = normed if weights.norms_depth_input else hidden
    if weights.project_in.weight.shape[0] > 0:
        projected = np.empty((rows, width), np.float32)
        into = weights.project_in
        product(start, into.weight[0], into.scale[0], into.bias[0], projected)
        start = projected
    both = np.empty((2 * rows, width), np.float32)
    x, normed = both[rows:], np.empty((rows, width), np.float32)
    for row in range(rows):
        for k in range(width):
            both[row, k] = start[row, k]
    logits = np.empty((rows, weights.depth_output.weight.shape[2]), np.float32)
    pair_slots, pair_positions = np.empty(2 * rows, np.int64), np.empty(2 * rows, np.int64)
    pair_lengths = np.empty(2 * rows, np.int64)
    rope = np.empty((2 * rows, weights.depth_rope.shape[1], 2), np.float32)
    for row in range(2 * rows):
        pair_slots[row], pair_positions[row], pair_lengths[row] = slots[row % rows], row // rows, row // rows + 1
    for codebook in range(1, books):
        _copy(weights.depth_embeddings, frames[:, codebook], x)
        _copy(weights.depth_rope, pair_positions, rope)
        first = 0 if codebook == 1 else rows
        step_layers(
            both[first:], weights.depth, state.depth_keys, state.depth_values, pair_slots[first:],
            pair_positions[first:], pair_lengths[first:], rope[first:], state.kept,
        )  # fmt: skip
        rms_norm(x, weights.depth_norm, weights.depth_eps, normed)
        product(
            normed, weights.depth_output.weight[0], weights.depth_output.scale[0], weights.depth_output.bias[0], logits
        )
        for row in range(rows):
            choice = _sample_token(logits[row], state, slots[row], codebook, 0, 0, False, rules.is_fixed)
            if choice < 0:
                frames[row, books + 2] = 0
            frames[row, codebook + 1] = max(choice, 0)
        for row in range(rows, 2 * rows):
            pair_positions[row], pair_lengths[row] = codebook + 1, codebook + 2

    skipped = 0 if rules.is_fixed else 1
    for row in range(rows):
        slot = slots[row]
        count = state.counts[slot]
        for book in range(books + 1):
            if count >= skipped:
                state.history[slot, (count - skipped) % WINDOW, book] = frames[row, book]
            state.tokens[slot, book] = frames[row, book]
        state.position[slot] += 1
        state.counts[slot] += 1


def compile_for(formats):
    """Compile `make_frame` for weights of these formats, and cache it."""
    remaining = iter(formats)
    one, three = np.zeros((1, 1), np.float32), np.zeros((1, 1, 2), np.float32)

    def product_of():
        return Product(np.zeros((1, 1, 1), next(remaining)), one, one)

    def layers():
        return Layers(one, product_of(), three, product_of(), one, product_of(), product_of(), 1, 1.0, 0, 0)

    weights = Weights(
        one, one, three, layers(), one[0], product_of(), product_of(), one, three, layers(), one[0], product_of(),
        False, 1.0, 1.0, 1.0,
    )  # fmt: skip
    whole, cache = np.zeros(1, np.int64), np.zeros((1, 1, 1, 1, 2), np.float32)
    state = State(
        cache, cache, cache, cache, np.zeros((1, 1, 1), np.int64), np.zeros((1, 1), np.int64), whole, whole,
        one[0], one[0], one[0], three, one,
    )  # fmt: skip
    arguments = (whole, state, weights, Rules(0, 0, 0, 1, False, False), np.zeros((1, 1), np.int64))
    make_frame.compile(tuple(numba.typeof(each) for each in arguments))
