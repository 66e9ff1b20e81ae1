"""Promises of the sampler."""

from __future__ import annotations

import torch

from s1_mini.layers.sampling import draw, penalise, ranked_probabilities, uniforms


def row(value: float, rows: int = 1) -> torch.Tensor:
    return torch.full((rows,), value)


def test_a_token_that_crosses_top_p_is_out_and_the_likeliest_is_always_in() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()

    probabilities, tokens = ranked_probabilities(logits, row(1.0), row(0.79))
    alone, _ = ranked_probabilities(logits, row(1.0), row(0.01))

    assert tokens.tolist() == [[0, 1, 2]]
    assert torch.allclose(probabilities, torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.allclose(alone, torch.tensor([[1.0, 0.0, 0.0]]))


def test_the_nucleus_is_cut_before_temperature() -> None:
    """At any temperature the same tokens are possible."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])

    cold, _ = ranked_probabilities(logits, row(0.1), row(0.95))
    hot, _ = ranked_probabilities(logits, row(2.0), row(0.95))

    assert torch.equal(cold > 0, hot > 0)
    assert hot[0, 1] > cold[0, 1] > 0


def test_the_penalty_falls_once_however_often_a_token_occurs() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])

    penalised = penalise(logits, torch.tensor([[0, 0, 1, 2]]), torch.tensor([[True, True, True, False]]), row(2.0))

    assert penalised.tolist() == [[1.0, -4.0, 1.0]]


def test_draws_have_the_frequencies_of_the_probabilities() -> None:
    probabilities = torch.tensor([[0.6, 0.3, 0.1]]).expand(20_000, 3)
    tokens = torch.tensor([[7, 8, 9]]).expand(20_000, 3)

    drawn = draw(probabilities, tokens, uniforms(1, 0, 20_000, 1)[:, 0])

    shares = torch.stack([(drawn == token).float().mean() for token in (7, 8, 9)])
    assert torch.allclose(shares, torch.tensor([0.6, 0.3, 0.1]), atol=0.015)


def test_a_draw_never_leaves_the_nucleus_whatever_the_uniform() -> None:
    probabilities = torch.tensor([[0.7, 0.3, 0.0]]).expand(2, 3)
    tokens = torch.tensor([[4, 5, 6]]).expand(2, 3)

    drawn = draw(probabilities, tokens, torch.tensor([0.0, 1.0]))

    assert drawn.tolist() == [4, 5]


def test_temperature_zero_is_the_arg_max() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))

    drawn = draw(*ranked_probabilities(logits, row(0.0, 8), row(1.0, 8)), uniforms(3, 0, 8, 1)[:, 0])

    assert torch.equal(drawn, logits.argmax(-1))


def test_rows_do_not_see_each_other() -> None:
    """A row alone draws what it draws among others."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    heat, top_p, uniform = torch.rand(5) + 0.5, torch.rand(5) * 0.5 + 0.4, uniforms(9, 0, 5, 1)[:, 0]

    together = draw(*ranked_probabilities(logits, heat, top_p), uniform)
    alone = [
        draw(*ranked_probabilities(logits[i : i + 1], heat[i : i + 1], top_p[i : i + 1]), uniform[i : i + 1])
        for i in range(5)
    ]

    assert torch.equal(together, torch.cat(alone))


def test_random_numbers_depend_on_seed_piece_and_frame_alone() -> None:
    long, short = uniforms(5, 2, 100, 10), uniforms(5, 2, 7, 10)

    assert torch.equal(long[:7], short)
    assert not torch.equal(short, uniforms(6, 2, 7, 10))
    assert not torch.equal(short, uniforms(5, 3, 7, 10))
    assert 0 <= long.min() <= long.max() < 1
