"""Measures of attention heads: one that follows the text passes, others fail for the right reason."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from s1_mini.alignment.calibration import Followed, Measures, best_paths, find_shifts, measure
from s1_mini.alignment.head import UNREAD
from s1_mini.alignment.path import FREE, MAX_ADVANCE, SKIP_COST
from s1_mini.alignment.times import find_spans

TEXT = "An early morning rain, warm and mellow, will soon wash the narrow lane near our wooden mill."
ENDS = np.arange(1, len(TEXT) + 1)
FRAME_S, RATE = 0.05, 16_000


def attention(tokens: np.ndarray, share: float = 0.7) -> np.ndarray:
    """Scores [T, N] of a head with a share of its attention at one token of each frame."""
    scores = np.full((len(tokens), len(TEXT)), (1 - share) / len(TEXT))
    scores[np.arange(len(tokens)), tokens] += share
    return np.log(scores)


def along(speed: float = 0.7) -> np.ndarray:
    """Tokens [T] of a head that follows the text."""
    return np.minimum(np.arange(len(TEXT) / speed) * speed, len(TEXT) - 1).astype(int)


def measures(tokens: np.ndarray, *, was_cut: bool = False, share: float = 0.7) -> Measures:
    found = measure(attention(tokens, share)[:, None], find_spans(TEXT, ENDS), FRAME_S, was_cut=was_cut)
    return Measures(*found[0])


def cost(path: tuple[int, ...], scores: np.ndarray) -> float:
    """The weight of a path by definition; minus infinity for an impossible one."""
    steps = np.diff(path)
    if path[0] >= FREE or (steps < 0).any() or (steps > MAX_ADVANCE).any():
        return -np.inf
    missing = max(0, scores.shape[1] - FREE - path[-1])
    return float(scores[np.arange(len(path)), path].sum()) - SKIP_COST * (np.maximum(0, steps - 1).sum() + missing)


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 7])
def test_best_paths_are_those_of_an_exhaustive_search(num_tokens: int) -> None:
    scores = np.random.default_rng(num_tokens).normal(size=(5, 3, num_tokens))

    found = best_paths(scores)

    for head in range(3):
        paths = list(itertools.product(range(num_tokens), repeat=5))
        best = max(paths, key=lambda path: cost(path, scores[:, head]))
        assert tuple(found[:, head]) == best


def test_a_head_that_follows_the_text_has_no_fault() -> None:
    found = measures(along())

    assert found.faults == []
    assert found.share == pytest.approx(0.7, abs=0.02)
    assert (found.coverage, found.monotony, found.ending) == (1, 1, 1)


def test_a_head_that_stays_at_one_token_is_refused_for_its_coverage() -> None:
    first, last = (measures(np.full(130, token)) for token in (0, len(TEXT) - 1))

    assert first.share > 0.3
    assert "coverage" in first.faults
    assert "coverage" in last.faults


def test_a_head_that_goes_back_and_forth_is_refused_as_not_monotonic() -> None:
    tokens = np.repeat(along(1.4), 2)
    tokens[1::2] = tokens[1::2] // 2

    assert "monotony" in measures(tokens).faults


def test_a_head_that_stops_halfway_or_an_utterance_that_was_cut_is_refused_for_its_ending() -> None:
    halfway = np.minimum(along(), len(TEXT) // 2)

    assert "ending" in measures(halfway).faults
    assert measures(along(), was_cut=True).faults == ["ending"]


def test_a_head_with_little_of_its_attention_at_the_text_is_refused_for_its_share() -> None:
    assert measures(along(), share=0.2).faults == ["share"]


def test_a_head_that_looks_at_the_newest_position_is_refused_where_the_text_is_read_step_by_step() -> None:
    frames, tokens = np.arange(3 * len(TEXT))[:, None], np.arange(len(TEXT))
    spans = find_spans(TEXT, ENDS)

    def measured(followed: np.ndarray, share: np.ndarray) -> Measures:
        """Measures of a head with its share of attention [T] at a token [T] of those read so far."""
        near = -0.1 * np.abs(tokens - followed[:, None])  # the rest of its attention is at neighbours
        scores = np.where(tokens <= frames, near - 8, UNREAD)
        scores[np.arange(len(followed)), followed] = np.log(share)
        return Measures(*measure(scores[:, None], spans, FRAME_S)[0])

    newest = measured(np.minimum(frames[:, 0], len(TEXT) - 1), np.where(frames[:, 0] < len(TEXT), 0.95, 1e-4))
    following = measured(frames[:, 0] // 3, np.full(len(frames), 0.7))

    assert newest.faults == ["share"]
    assert following.faults == []


def spoken(shift_s: float, text: str = TEXT, pause_s: float = 0.3) -> Followed:
    """An utterance with loud sonorants and silent marks, `shift_s` after the head reads them."""
    tokens, letter_s, audio = [], 0.075, np.random.default_rng(0)
    parts = [np.zeros(round((0.5 + shift_s) * RATE))]
    for number, letter in enumerate(text):
        is_pause = letter in ",."
        seconds = pause_s if is_pause else letter_s
        gain = 0.001 if is_pause else 1.0 if letter.lower() in "aeiouylmnrw" else 0.1
        parts.append(gain * audio.normal(size=round(seconds * RATE)))
        tokens += [number] * round(seconds / 0.025)
    scores = attention(np.array([0] * 20 + tokens))  # half a second at the first token
    wave = np.concatenate(parts)[: len(scores) * RATE // 40]
    return Followed(text, find_spans(text, ENDS), ENDS, scores, wave.astype(np.float32), RATE, 0.025)


def test_shifts_are_the_differences_between_attention_and_sound() -> None:
    near, far = (find_shifts(3, 2, [spoken(shift_s)]) for shift_s in (0.05, 0.15))

    assert (near.layer, near.head) == (3, 2)
    assert far.shift_ms - near.shift_ms == pytest.approx(100, abs=10)
    assert near.pause_shift_ms == pytest.approx(50, abs=20)
    assert far.pause_shift_ms == pytest.approx(150, abs=20)


def test_the_shift_is_zero_if_sound_does_not_follow_the_letters() -> None:
    each = spoken(0.1)
    noise = np.random.default_rng(1).normal(size=len(each.audio)).astype(np.float32)

    other = Followed(each.text, each.spans, each.token_ends, each.scores, noise, RATE, each.frame_s)

    assert find_shifts(0, 0, [other]).shift_ms == 0
