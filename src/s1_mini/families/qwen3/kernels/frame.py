"""Generate a frame of Qwen3-TTS in one compiled call: embedding, both transformers, and sampling of all codes.

The results match those of `sampling` and the network in torch, except for the last bits.
Shapes: R rows, B slots, K codebooks, V codes, N logits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from s1_mini.kernels.compiled import frame
from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.frame import depth_logits, end_frame, start_depth, start_frame
from s1_mini.kernels.compiled.multiply import f32
from s1_mini.kernels.compiled.sampling import SCALE, edge, is_finite, mass_above, order, pick, softmax, to_masses

# Copies of constants in `ranking` and `sampling`, which this module does not import because they import torch.
MIN_TEMPERATURE = 1e-5
MIN_FRAMES = 2


class Sampling(NamedTuple):
    """Sampling parameters of B slots."""

    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray


class State(NamedTuple):
    """The state of B slots, as in `model.Qwen3State`; changed in place."""

    frame: frame.State
    texts: np.ndarray  # [B, S]
    seen: np.ndarray  # uint8 [B, V]
    penalty: np.ndarray
    first: Sampling  # of the first code
    depth: Sampling  # of the others
    uniforms: np.ndarray


@in_order
def sample(logits, temperature, top_k, top_p, uniform):
    """Sample a code from `logits` [N] as `sampling.probabilities` and `ranking.sample` do, without a sort.

    The result is an arbitrary code if a penalty has made logits infinite.
    """
    size = logits.shape[0]
    keys, masses = np.empty(size, np.uint32), np.empty(size, np.uint32)
    shares, kept = np.empty(size, np.float32), np.ones(size, np.bool_)
    likeliest = order(logits, keys)
    if temperature <= f32(MIN_TEMPERATURE):
        return likeliest
    if 0 < top_k < size:
        masses[:] = 1
        least = edge(keys, masses, np.uint32(top_k - 1))
        for code in range(size):
            kept[code] = keys[code] >= least
    softmax(logits, logits[likeliest], f32(1) / temperature, kept, masses, shares)
    if top_p < f32(1):
        bound = max(np.uint32(np.int64(top_p * f32(SCALE))), np.uint32(1))
        least = edge(keys, masses, bound - np.uint32(1))
        mass = mass_above(keys, masses, least)
        for code in range(size):
            is_inside = keys[code] > least or (keys[code] == least and mass < bound)
            mass += masses[code] if keys[code] == least else np.uint32(0)
            shares[code] = shares[code] if is_inside else f32(0)
        to_masses(shares, masses)
    return pick(masses, uniform)


@in_order
def _sample_code(logits, state, rules, slot, codebook):
    """Sample a code of a slot's frame from `logits` [N]; -1 if they are not finite."""
    if not is_finite(logits):
        return -1
    count = state.frame.counts[slot]
    if codebook == 0:
        penalty, seen, end = state.penalty[slot], state.seen[slot], logits.shape[0] - 1
        for code in range(seen.shape[0]):
            if seen[code]:
                logits[code] = logits[code] * penalty if logits[code] < 0 else logits[code] / penalty
        if count < MIN_FRAMES:
            logits[end] = f32(-np.inf)
    uniform = state.uniforms[slot, count, codebook]
    return sample(logits, rules.temperature[slot], rules.top_k[slot], rules.top_p[slot], uniform)


@in_order
def make_frame(slots, state, weights, frames):
    """Generate one frame for each of `slots` int64 [R] into `frames` int64 [R, K + 3].

    A row has the next text token, the codes, whether it is the end, and whether the logits were finite.
    """
    rows, books = slots.shape[0], frames.shape[1] - 3
    hidden, normed, logits = start_frame(slots, state.frame, weights)
    for row in range(rows):
        slot = slots[row]
        choice = _sample_code(logits[row], state, state.first, slot, 0)
        stops = choice == logits.shape[1] - 1
        frames[row, 0] = state.texts[slot, state.frame.counts[slot]]
        frames[row, 1] = 0 if stops else max(choice, 0)
        frames[row, books + 1], frames[row, books + 2] = stops, choice >= 0
        state.seen[slot, frames[row, 1]] = 1
    depth = start_depth(slots, hidden, normed, weights)
    for codebook in range(1, books):
        logits = depth_logits(codebook, frames[:, codebook], state.frame, weights, depth)
        for row in range(rows):
            choice = _sample_code(logits[row], state, state.depth, slots[row], codebook)
            if choice < 0:
                frames[row, books + 2] = 0
            frames[row, codebook + 1] = max(choice, 0)
    end_frame(slots, frames, state.frame)


def compile_for(formats):
    """Compile `make_frame` and `prefill` for weights of these formats, and cache them."""
    one, whole = frame.ONE, frame.WHOLE
    sampling = Sampling(one[0], whole, one[0])
    state = State(
        frame.state_of(),
        np.zeros((1, 1), np.int64),
        np.zeros((1, 1), np.uint8),
        one[0],
        sampling,
        sampling,
        frame.THREE,
    )
    frame.compile_frame(make_frame, state, frame.weights_of(formats), np.zeros((1, 1), np.int64))
