"""Monotonic paths over the tokens of a text: how many frames are spent at each token.

A path advances by 0 to `MAX_ADVANCE` tokens a frame; each skipped token costs `SKIP_COST`. Paths are weighted by the
attention scores of their tokens. The expected number of frames at each token is fractional, so times are finer than one
frame.
Shapes: T frames, N tokens.
"""

from __future__ import annotations

import numpy as np

MAX_ADVANCE = 4
SKIP_COST = 1.0  # nats
FREE = 3  # a path may begin at any of the first tokens without cost, and end at any of the last
FLOOR = 1e-20  # smallest weight of a token, so that some path always has a weight above 0
STEPS = np.array([1.0, *(np.exp(-SKIP_COST * skipped) for skipped in range(MAX_ADVANCE))])


class LivePath:
    """Forward algorithm: the distribution of the path at each frame, given the frames up to it."""

    def __init__(self, num_tokens: int) -> None:
        self.spent = np.zeros(num_tokens)  # expected frames at each token so far
        self.now = np.zeros(num_tokens)  # probability of each token at the last frame
        self._has_begun = False

    def push(self, scores: np.ndarray) -> None:
        """Add the scores [N] of the next frame."""
        weights = weights_of(scores)
        if not self._has_begun:
            self._has_begun = True
            state = np.where(np.arange(len(weights)) < FREE, weights, 0)
        else:
            state = np.convolve(self.now, STEPS)[: len(weights)] * weights
        self.now = state / state.sum()
        self.spent += self.now

    def share_before(self, token: int) -> float:
        """Return the probability that the last frame is at a token before this one."""
        return float(self.now[:token].sum())


def frames_spent(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected frames at each token [N] and the probabilities of the last frame [N], given all frames.

    Ending at any of the last `FREE` tokens costs nothing; ending n tokens before the first of these costs
    n · `SKIP_COST`.
    """
    weights = weights_of(scores)
    num_frames, num_tokens = weights.shape
    forward, path = np.zeros(weights.shape), LivePath(num_tokens)
    for frame in range(num_frames):
        path.push(scores[frame])
        forward[frame] = path.now
    missing = np.maximum(0, num_tokens - FREE - np.arange(num_tokens))
    state = np.exp(-SKIP_COST * np.minimum(missing, 300.0))
    spent, last = np.zeros(num_tokens), np.zeros(num_tokens)
    for frame in range(num_frames - 1, -1, -1):
        joint = forward[frame] * (state / state.max())
        total = joint.sum()
        joint = joint / total if total > 0 else forward[frame]
        spent += joint
        if frame == num_frames - 1:
            last = joint
        state = np.convolve((state / state.max() * weights[frame])[::-1], STEPS)[:num_tokens][::-1]
    return spent, last


def weights_of(scores: np.ndarray) -> np.ndarray:
    """Return weights [..., N] of at most 1. The scores are logarithms of weights, up to a constant for each frame."""
    exact = scores.astype(np.float64)
    weights: np.ndarray = np.maximum(np.exp(exact - exact.max(-1, keepdims=True)), FLOOR)
    return weights
