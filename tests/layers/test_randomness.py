"""Random numbers belong to a request."""

from __future__ import annotations

import torch

from s1_mini.layers.randomness import uniforms


def test_random_numbers_depend_on_seed_piece_and_frame_alone() -> None:
    long, short = uniforms(5, 2, 100, 10), uniforms(5, 2, 7, 10)

    assert torch.equal(long[:7], short)
    assert not torch.equal(short, uniforms(6, 2, 7, 10))
    assert not torch.equal(short, uniforms(5, 3, 7, 10))
    assert 0 <= long.min() <= long.max() < 1
