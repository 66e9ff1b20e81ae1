"""Sampling in torch; tests/kernels/test_kernels.py checks that the kernel agrees."""

from __future__ import annotations

import pytest
import torch

from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.s1.kernels.sampling import (
    WINDOW,
    RepetitionWindow,
    SamplingInputs,
    SemanticTokens,
    penalise,
    probabilities,
    sample_code,
    sample_semantic,
)
from s1_mini.kernels.ranking import sample
from s1_mini.layers.randomness import uniforms

FIRST, CODES, BOOKS = 100, 6, 3


def row(value: float, rows: int = 1) -> torch.Tensor:
    return torch.full((rows,), value)


def test_a_token_that_crosses_top_p_is_out_and_the_likeliest_is_always_in() -> None:
    logits = torch.tensor([[0.3, 0.5, 0.2]]).log()

    assert torch.allclose(probabilities(logits, row(1.0), row(0.79)), torch.tensor([[0.0, 1.0, 0.0]]))
    assert torch.allclose(probabilities(logits, row(1.0), row(0.81)), torch.tensor([[0.375, 0.625, 0.0]]))
    assert torch.allclose(probabilities(logits, row(1.0), row(0.01)), torch.tensor([[0.0, 1.0, 0.0]]))


def test_of_equal_logits_the_lower_token_ranks_first() -> None:
    assert probabilities(torch.zeros(1, 4), row(1.0), row(0.5)).tolist() == [[0.5, 0.5, 0.0, 0.0]]


def test_the_nucleus_is_cut_before_temperature() -> None:
    """The same tokens are possible at any temperature."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])

    cold, hot = (probabilities(logits, row(temperature), row(0.95)) for temperature in (0.1, 2.0))

    assert torch.equal(cold > 0, hot > 0)
    assert hot[0, 1] > cold[0, 1] > 0


def test_the_penalty_applies_once_however_often_a_token_occurs() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    tokens, valid = torch.tensor([[0, 0, 1, 2]]), torch.tensor([[True, True, True, False]])

    assert penalise(logits, tokens, valid, row(2.0)).tolist() == [[1.0, -4.0, 1.0]]


def test_a_token_without_a_logit_needs_no_penalty() -> None:
    logits = torch.tensor([[2.0, 1.0]])

    assert torch.equal(penalise(logits, torch.tensor([[-1, 2]]), torch.ones(1, 2, dtype=torch.bool), row(2.0)), logits)


def test_samples_have_the_frequencies_of_the_probabilities() -> None:
    chances = torch.tensor([[0.6, 0.3, 0.1]]).expand(20_000, 3)

    sampled = sample(chances, uniforms(1, 0, 20_000, 1)[:, 0])

    shares = torch.stack([(sampled == token).float().mean() for token in range(3)])
    assert torch.allclose(shares, torch.tensor([0.6, 0.3, 0.1]), atol=0.015)


def test_a_sample_never_leaves_the_nucleus_whatever_the_uniform() -> None:
    chances = torch.tensor([[0.0, 0.7, 0.3, 0.0]]).expand(2, 4)

    assert sample(chances, torch.tensor([0.0, 1.0])).tolist() == [1, 2]


def test_temperature_zero_is_the_arg_max() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))

    sampled = sample(probabilities(logits, row(0.0, 8), row(1.0, 8)), uniforms(3, 0, 8, 1)[:, 0])

    assert torch.equal(sampled, logits.argmax(-1))


def test_rows_are_sampled_independently() -> None:
    """A row samples the same tokens alone and in a batch."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    temperature, top_p, uniform = torch.rand(5) + 0.5, torch.rand(5) * 0.5 + 0.4, uniforms(9, 0, 5, 1)[:, 0]

    together = sample(probabilities(logits, temperature, top_p), uniform)
    alone = [
        sample(probabilities(logits[i : i + 1], temperature[i : i + 1], top_p[i : i + 1]), uniform[i : i + 1])
        for i in range(5)
    ]

    assert torch.equal(together, torch.cat(alone))


def test_rounding_changes_only_samples_at_the_boundary() -> None:
    """Swapping the ranks of two tokens changes nothing: sampling follows token order, not logit order."""
    logits = torch.tensor([[1.0, 1.0001, -9.0], [1.0001, 1.0, -9.0]]).repeat_interleave(1000, 0)
    uniform = uniforms(4, 0, 1000, 1)[:, 0].repeat(2)

    one, other = sample(probabilities(logits, row(1.0, 2000), row(1.0, 2000)), uniform).chunk(2)

    assert (one != other).sum() <= 1


def inputs_of(count: list[int]) -> SamplingInputs:
    rows = len(count)
    window = RepetitionWindow(torch.zeros(rows, WINDOW, BOOKS + 1, dtype=torch.int64), is_fixed=True)
    sampling = SamplingTensors(row(0.0, rows), row(1.0, rows), row(1.0, rows), torch.rand(rows, 9, BOOKS))
    return SamplingInputs(sampling, torch.tensor(count), window)


def semantic_tokens(*, restricted: bool) -> SemanticTokens:
    return SemanticTokens(FIRST, FIRST + CODES - 1, FIRST + 50, restricted, CODES)


@pytest.mark.parametrize("restricted", [False, True])
def test_the_semantic_token_determines_the_first_code_and_the_end(restricted: bool) -> None:
    """The third row would end, but has not generated a frame yet; it gets the next likeliest token instead."""
    tokens = semantic_tokens(restricted=restricted)
    logits = torch.full((3, CODES + 1 if restricted else FIRST + 60), -9.0)
    end = CODES if restricted else tokens.end
    code = 4 if restricted else FIRST + 4
    logits[0, code], logits[1, end], logits[2, end], logits[2, code] = 5.0, 5.0, 5.0, 4.0
    table, frames = torch.randn(CODES, 8), torch.full((3, BOOKS + 3), -1)

    x = sample_semantic(logits, table, frames, inputs_of([2, 2, 0]), tokens)

    ended = [tokens.end, CODES - 1]
    assert frames[:, [0, 1, -2, -1]].tolist()[:2] == [[FIRST + 4, 4, 0, 1], [*ended, 1, 1]]
    assert frames[2, [0, 1, -2, -1]].tolist() == ([FIRST + 4, 4, 0, 1] if restricted else [*ended, 0, 1])
    assert frames[:, 2:-2].eq(-1).all()
    assert torch.equal(x, table[frames[:, 1]])


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_row_with_non_finite_logits_is_reported_and_affects_no_other(number: float) -> None:
    logits, frames = torch.randn(3, CODES + 1), torch.zeros(3, BOOKS + 3, dtype=torch.int64)
    expected = logits[[0, 2]].argmax(-1)
    logits[1, 3] = number

    sample_semantic(logits, torch.randn(CODES, 8), frames, inputs_of([1, 1, 1]), semantic_tokens(restricted=True))

    assert frames[:, -1].tolist() == [1, 0, 1]
    assert torch.equal(frames[[0, 2], 0], torch.where(expected == CODES, FIRST + 50, expected + FIRST))
    assert 0 <= frames[1, 1] < CODES


def test_a_repeated_code_is_sampled_less_often() -> None:
    logits, frames = torch.tensor([[2.0, 1.5, 0.0]]).repeat(2, 1), torch.zeros(2, BOOKS + 3, dtype=torch.int64)
    inputs = inputs_of([1, 0])
    inputs.sampling.repetition_penalty.fill_(2.0)
    inputs.window.history[:, 0, 3] = 0  # of codebook 2: code 0, in a frame that the second row has not generated
    table = torch.randn(3, 8)

    x = sample_code(logits, table, frames, inputs, 2)

    assert frames[:, 3].tolist() == [1, 0]
    assert torch.equal(x, table[[1, 0]])
