"""Generate a frame of S1 in one compiled call: embedding, both transformers, and sampling of all tokens.

The results equal those of torch (`kernels/positions.py`, `sampling.py` and the network) except for rounding.
Shapes: R rows, B slots, K codebooks, V tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from s1_mini.kernels.compiled import frame
from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.frame import depth_logits, end_frame, start_depth, start_frame
from s1_mini.kernels.compiled.multiply import f32
from s1_mini.kernels.compiled.sampling import SCALE, edge, is_finite, mass_above, order, pick, softmax

# Copies of constants in `ranking` and `sampling`, which this module does not import because they import torch.
MIN_TEMPERATURE = 1e-5
WINDOW = 16


class State(NamedTuple):
    """The tensors of `model.S1State` and of the slots' sampling parameters as arrays, changed in place."""

    frame: frame.State
    history: np.ndarray
    penalty: np.ndarray
    temperature: np.ndarray
    top_p: np.ndarray
    uniforms: np.ndarray
    top_k: np.ndarray


class Rules(NamedTuple):
    """Vocabulary and repetition rules; see `sampling.SemanticTokens`, `sampling.RepetitionWindow` and `config.Ras`."""

    first: int  # the semantic token of code 0
    last: int  # the last semantic token
    end: int
    num_codes: int
    restricted: bool
    is_fixed: bool
    is_aware: bool  # whether the model has repetition-aware sampling, with the next two numbers
    second_temperature: np.float32
    second_top_p: np.float32


@in_order
def _cut(keys, masses, bound, kept):
    """Drop the token with which the cumulative mass exceeds `bound`, and all that follow in the order of their keys."""
    least = edge(keys, masses, bound)
    mass = mass_above(keys, masses, least)
    for token in range(keys.shape[0]):
        if keys[token] == least:
            mass += masses[token]
            kept[token] = kept[token] and mass <= bound
        elif keys[token] < least:
            kept[token] = False


@in_order
def sample(logits, temperature, top_p, top_k, uniform):
    """Sample a token from `logits` [V] without sorting; same result as `probabilities` and `ranking.sample`.

    If a penalty has made logits infinite, the result is an arbitrary token.
    """
    size = logits.shape[0]
    keys, masses = np.empty(size, np.uint32), np.empty(size, np.uint32)
    shares, kept = np.empty(size, np.float32), np.ones(size, np.bool_)
    likeliest = order(logits, keys)
    top = logits[likeliest]
    softmax(logits, top, f32(1), kept, masses, shares)
    _cut(keys, masses, np.uint32(np.int64(top_p * f32(SCALE))), kept)
    if 0 < top_k < np.count_nonzero(kept):
        masses[:] = 1
        _cut(keys, masses, np.uint32(top_k), kept)
    kept[likeliest] = True
    softmax(logits, top, f32(1) / max(temperature, f32(MIN_TEMPERATURE)), kept, masses, shares)
    return pick(masses, uniform)


@in_order
def _penalise(logits, token, penalty, hit):
    """Penalise a token, unless `hit` says that it has been penalised already."""
    if 0 <= token < logits.shape[0] and not hit[token]:
        hit[token] = True
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty


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
def _sample_aware(logits, state, slot, rules):
    """Sample a semantic token, and once more if one of the last frames has it; same result as torch's."""
    temperature, top_k, offset = state.temperature[slot], state.top_k[slot], rules.first if rules.restricted else 0
    uniforms = state.uniforms[slot, state.frame.counts[slot]]
    if not rules.restricted:
        for token in range(logits.shape[0]):
            can_end = token == rules.end and state.frame.counts[slot] > 0
            logits[token] = logits[token] if can_end or rules.first <= token <= rules.last else f32(-np.inf)
    choice = sample(logits, temperature, state.top_p[slot], top_k, uniforms[0])
    if temperature > f32(MIN_TEMPERATURE) and rules.first <= choice + offset <= rules.last:
        for frame in range(state.history.shape[1]):
            if state.history[slot, frame, 0] == choice + offset:
                return sample(logits, rules.second_temperature, rules.second_top_p, top_k, uniforms[-1])
    return choice


@in_order
def _sample_token(logits, state, slot, codebook, restricted, rules):
    """Return a token of a slot's frame, sampled from `logits` [V], which are overwritten; -1 if they are not finite."""
    if not is_finite(logits):
        return -1
    count = state.frame.counts[slot]
    if restricted and count == 0:
        logits[logits.shape[0] - 1] = f32(-np.inf)
    if rules.is_aware and codebook == 0:
        return _sample_aware(logits, state, slot, rules)
    if not rules.is_aware:
        index, past, penalty = codebook + 1 if codebook > 0 else 0, state.history[slot], state.penalty[slot]
        _penalise_all(logits, past, count, index, rules.first, rules.last, restricted, rules.is_fixed, penalty)
    uniform = state.uniforms[slot, count, codebook]
    return sample(logits, state.temperature[slot], state.top_p[slot], state.top_k[slot], uniform)


@in_order
def make_frame(slots, state, weights, rules, frames):
    """Generate one frame for each of `slots` int64 [R] into `frames` int64 [R, K + 3].

    A row has the semantic token, the codes, whether the utterance ends, and whether the logits were finite.
    """
    rows, books = slots.shape[0], frames.shape[1] - 3
    hidden, normed, logits = start_frame(slots, state.frame, weights)
    for row in range(rows):
        slot = slots[row]
        choice = _sample_token(logits[row], state, slot, 0, rules.restricted, rules)
        valid = choice >= 0
        choice = max(choice, 0)
        stops = choice == rules.end and state.frame.counts[slot] > 0
        if rules.restricted:
            stops = choice == logits.shape[1] - 1
            choice = rules.end if stops else choice + rules.first
        frames[row, 0], frames[row, books + 1], frames[row, books + 2] = choice, stops, valid
        frames[row, 1] = min(max(choice - rules.first, 0), rules.num_codes - 1)
    depth = start_depth(slots, hidden, normed, weights)
    for codebook in range(1, books):
        logits = depth_logits(codebook, frames[:, codebook], state.frame, weights, depth)
        for row in range(rows):
            choice = _sample_token(logits[row], state, slots[row], codebook, False, rules)
            if choice < 0:
                frames[row, books + 2] = 0
            frames[row, codebook + 1] = max(choice, 0)
    skipped, window = 0 if rules.is_fixed else 1, state.history.shape[1]
    for row in range(rows):
        recorded = state.frame.counts[slots[row]] - skipped
        if recorded >= 0:
            for book in range(books + 1):
                state.history[slots[row], recorded % window, book] = frames[row, book]
    end_frame(slots, frames, state.frame)


def compile_for(formats):
    """Compile `make_frame` and `prefill` for weights of these formats, and cache them."""
    one, three = frame.ONE, frame.THREE
    state = State(frame.state_of(), np.zeros((1, 1, 1), np.int64), one[0], one[0], one[0], three, frame.WHOLE)
    rules = Rules(0, 0, 0, 1, False, False, False, f32(1), f32(1))
    frame.compile_frame(make_frame, state, frame.weights_of(formats), rules, np.zeros((1, 1), np.int64))
