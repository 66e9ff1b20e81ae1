"""Sampling frequencies match transformers' warpers, and use the request's own random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from s1_mini.core.messages import Begin, Conditions
from s1_mini.families.cascade.kernels.choose import choose, choose_plain, end_early
from s1_mini.families.cascade.stages import stage_uniforms
from s1_mini.types import SamplingParams

DRAWS = 4096


def logits_of(seed: int = 0, size: int = 50) -> torch.Tensor:
    return 2 * torch.randn(1, size, generator=torch.Generator().manual_seed(seed))


def shares_of(choices: torch.Tensor, size: int = 50) -> torch.Tensor:
    return torch.bincount(choices, minlength=size) / len(choices)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 0.8), (1.3, 7, 1.0), (0.7, 12, 0.6)]
)
def test_ids_are_chosen_as_often_as_transformers_would(temperature: float, top_k: int, top_p: float) -> None:
    logits = logits_of()
    wanted = TemperatureLogitsWarper(temperature)(None, logits)
    wanted = TopKLogitsWarper(top_k)(None, wanted) if top_k else wanted
    wanted = (TopPLogitsWarper(top_p)(None, wanted) if top_p < 1 else wanted).softmax(-1)[0]
    evenly = (torch.arange(DRAWS) + 0.5) / DRAWS

    rows = logits.expand(DRAWS, -1)
    asked = (torch.full((DRAWS,), temperature), torch.full((DRAWS,), top_k), torch.full((DRAWS,), top_p))
    shares = shares_of(choose(rows, *asked, evenly))

    assert (shares - wanted).abs().max() < 2 / DRAWS
    assert torch.equal(shares > 0, wanted > 1 / DRAWS) or (shares[wanted == 0] == 0).all()


def test_without_any_limit_they_are_chosen_by_their_probability() -> None:
    evenly = (torch.arange(DRAWS) + 0.5) / DRAWS

    choices = choose_plain(logits_of().expand(DRAWS, -1), torch.full((DRAWS,), 0.5), evenly)

    assert (shares_of(choices) - (logits_of() / 0.5).softmax(-1)[0]).abs().max() < 2 / DRAWS


def test_at_zero_temperature_the_likeliest_is_chosen_whatever_the_other_parameters() -> None:
    logits, zeros = torch.cat([logits_of(seed) for seed in range(20)]), torch.zeros(20)
    uniform = torch.rand(20, generator=torch.Generator().manual_seed(1))

    chosen = choose(logits, zeros, zeros.long(), torch.full((20,), 0.8), uniform)

    assert torch.equal(chosen, logits.argmax(-1))
    assert torch.equal(choose_plain(logits, zeros, uniform), logits.argmax(-1))


def test_at_zero_temperature_the_first_of_equal_ids_is_chosen_whatever_the_random_number() -> None:
    """In half precision two ids often have equal logits."""
    logits = logits_of().bfloat16()
    logits[0, 20:23] = logits.max() + 1
    rows, zeros, evenly = logits.expand(9, -1), torch.zeros(9), torch.linspace(0, 0.99, 9)

    for choice in (choose(rows, zeros, zeros.long(), torch.ones(9), evenly), choose_plain(rows, zeros, evenly)):
        assert choice.tolist() == [20] * 9


def test_a_rows_sample_does_not_depend_on_other_rows() -> None:
    logits = torch.cat([logits_of(seed, 1024) for seed in range(6)])
    asked = torch.linspace(0.3, 1.5, 6), torch.arange(6) * 9, torch.linspace(0.4, 1.0, 6), torch.linspace(0, 0.99, 6)

    together = choose(logits, *asked)

    assert together.tolist() == [int(choose(logits[i : i + 1], *(each[i : i + 1] for each in asked))) for i in range(6)]


def test_an_end_above_the_threshold_is_chosen_instead() -> None:
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    choice = torch.zeros(2, dtype=torch.long)

    assert end_early(logits, choice, 1, 0.5).tolist() == [1, 0]
    assert end_early(logits, choice, 1, 0.0).tolist() == [0, 0]


def test_each_stage_and_each_utterance_has_random_numbers_of_its_own() -> None:
    def table(stage: int, seed: int, utterance: int, count: int = 8) -> np.ndarray:
        conditions = Conditions(SamplingParams(), seed, utterance, 10, {})
        begin = Begin(0, 0, None, None, 0, 1, 1, 0, 0, conditions)
        return stage_uniforms(stage, begin, count)[:, 0].numpy()

    tables = [table(stage, seed, utterance) for stage in range(3) for seed in (1, 2) for utterance in (0, 1)]

    assert len({each.tobytes() for each in tables}) == len(tables)
    assert np.array_equal(table(1, 2, 0, 20)[:8], table(1, 2, 0, 8))
