"""Sampling of Qwen3-TTS in torch, against transformers' own processors; test_qwen3_kernels.py compares the kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from s1_mini.families.qwen3.kernels.sampling import CodeSampling, FirstCode, probabilities, sample_code

ROWS, CODES, BOOKS, FRAMES = 64, 50, 3, 5


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def row(value: float) -> Tensor:
    return torch.full((ROWS,), value)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.9, 7, 1.0), (1.3, 0, 0.6), (0.5, 20, 0.8), (1.0, 0, 1.0)]
)
@pytest.mark.parametrize("coarse", [False, True])
def test_probabilities_are_those_of_transformers(temperature: float, top_k: int, top_p: float, coarse: bool) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper  # takes seconds to import

    scores = randn(ROWS, CODES) * 2
    if coarse and top_p == 1:  # equal scores at the edge of the top k stay in
        scores = scores.round()
    expected = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)

    ours = probabilities(scores, row(temperature), row(top_k).long(), row(top_p))

    torch.testing.assert_close(ours, expected.softmax(-1), atol=1e-6, rtol=1e-5)


def test_temperature_zero_is_greedy_and_the_first_of_equal_scores_wins() -> None:
    scores = randn(ROWS, CODES).round()

    ours = probabilities(scores, row(0.0), row(0).long(), row(1.0))

    assert torch.equal(ours.argmax(-1), scores.argmax(-1))
    assert (ours.max(-1).values == 1).all()


def sampled(logits: Tensor, count: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """The frames after greedy sampling of the first code: text, code, …, end, finite."""
    frames = torch.full((ROWS, BOOKS + 3), -7)
    rules = CodeSampling(row(0.0), row(0).long(), row(1.0), torch.zeros(ROWS, FRAMES, BOOKS), count)
    texts = torch.arange(ROWS * FRAMES).view(ROWS, FRAMES)
    sample_code(logits, randn(CODES, 8), frames, rules, 0, FirstCode(row(penalty), seen, texts))
    return frames


def test_all_first_codes_of_the_utterance_are_penalised_as_in_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, history = randn(ROWS, CODES + 1), torch.randint(CODES, (ROWS, 30))
    logits[:, -1] = -9.0
    seen = torch.zeros(ROWS, CODES, dtype=torch.uint8).scatter_(1, history, 1)

    frames = sampled(logits.clone(), torch.full((ROWS,), 4), seen, 1.3)

    expected = RepetitionPenaltyLogitsProcessor(1.3)(history, logits.clone())
    assert torch.equal(frames[:, 1], expected.argmax(-1))


def test_the_end_is_sampled_from_the_third_frame_on() -> None:
    logits = randn(ROWS, CODES + 1)
    logits[:, -1] = 9.0
    count = torch.arange(ROWS) % FRAMES

    frames = sampled(logits, count, torch.zeros(ROWS, CODES, dtype=torch.uint8), 1.05)

    assert torch.equal(frames[:, -2] == 1, count >= 2)
    assert (frames[:, 1] < CODES).all()
    assert torch.equal(frames[:, 0], torch.arange(ROWS) * FRAMES + count)  # the text of the next position


def test_logits_that_are_not_finite_are_noted() -> None:
    logits = randn(ROWS, CODES + 1)
    logits[3, 7], logits[5, 9] = torch.nan, torch.inf

    frames = sampled(logits, torch.zeros(ROWS).long(), torch.zeros(ROWS, CODES, dtype=torch.uint8), 1.0)

    assert (frames[:, -1] == 0).nonzero().flatten().tolist() == [3, 5]
