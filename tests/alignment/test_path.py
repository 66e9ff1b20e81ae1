"""Paths over attention scores give the time of each token, whole or live."""

from __future__ import annotations

import numpy as np
import pytest

from s1_mini.alignment.path import LivePath, frames_spent


def scores_of(tokens: list[int], num_tokens: int, *, contrast: float = 6.0, noise: float = 0.5) -> np.ndarray:
    """Noisy scores that are highest at one token of each frame."""
    scores = np.random.default_rng(0).normal(0, noise, (len(tokens), num_tokens))
    scores[np.arange(len(tokens)), tokens] += contrast
    return scores.astype(np.float32)


def live(scores: np.ndarray) -> LivePath:
    path = LivePath(scores.shape[1])
    for row in scores:
        path.push(row)
    return path


@pytest.mark.parametrize("tokens", [[0, 0, 1, 2, 2, 2, 3, 4], [0, 2, 4, 8, 12, 12, 12, 13], [1] * 6 + [2]])
def test_frames_are_counted_at_the_tokens_that_they_attend_to(tokens: list[int]) -> None:
    num_tokens = max(tokens) + 1

    spent, last = frames_spent(scores_of(tokens, num_tokens, contrast=12, noise=0.1))

    np.testing.assert_allclose(spent, np.bincount(tokens, minlength=num_tokens), atol=0.05)
    assert last.argmax() == tokens[-1]


def test_a_frame_that_attends_to_another_place_does_not_break_the_path() -> None:
    tokens = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    scores = scores_of(tokens, 40, contrast=12, noise=0.1)
    scores[4], scores[4, 33] = 0, 12

    spent, _ = frames_spent(scores)

    assert spent[33] < 0.01
    assert spent[:10].sum() > 9.9


def test_live_and_whole_paths_agree_when_scores_are_clear() -> None:
    scores = scores_of([0, 0, 1, 1, 3, 4, 4, 5, 6], 7, contrast=12, noise=0.1)

    np.testing.assert_allclose(live(scores).spent, frames_spent(scores)[0], atol=0.1)


def test_every_frame_is_assigned_to_tokens_whatever_the_scores_are() -> None:
    rng = np.random.default_rng(1)
    for num_frames, num_tokens in ((1, 1), (1, 50), (3, 200), (60, 2), (200, 100)):
        scores = rng.normal(0, 100, (num_frames, num_tokens)).astype(np.float32)

        assert frames_spent(scores)[0].sum() == pytest.approx(num_frames)
        assert live(scores).spent.sum() == pytest.approx(num_frames)


def test_only_differences_between_the_scores_of_a_frame_count() -> None:
    scores = scores_of([0, 1, 2, 2, 3], 4)
    shifted = scores + np.array([[50], [-80], [3], [0], [7]], np.float32)

    np.testing.assert_allclose(frames_spent(shifted)[0], frames_spent(scores)[0], atol=1e-4)
    np.testing.assert_allclose(live(shifted).spent, live(scores).spent, atol=1e-4)
