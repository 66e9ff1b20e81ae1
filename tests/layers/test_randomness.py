"""Each request has its own random numbers."""

from __future__ import annotations

import pytest
import torch

from s1_mini.layers.randomness import random_bytes, uniforms


def test_random_numbers_depend_on_seed_piece_and_frame_alone() -> None:
    long, short = uniforms(5, 2, 100, 10), uniforms(5, 2, 7, 10)

    assert torch.equal(long[:7], short)
    assert not torch.equal(short, uniforms(6, 2, 7, 10))
    assert not torch.equal(short, uniforms(5, 3, 7, 10))
    assert 0 <= long.min() <= long.max() < 1


def test_bytes_of_a_frame_belong_to_its_request_and_are_spread_evenly() -> None:
    long = random_bytes(seed=7, piece=1, block=0, frames=50, samples=512)

    assert torch.equal(random_bytes(seed=7, piece=1, block=0, frames=3, samples=512), long[:3])
    assert random_bytes(seed=7, piece=1, block=0, frames=3, samples=5).shape == (3, 5)
    for other in ({"seed": 8}, {"piece": 2}, {"block": 1}):
        asked = {"seed": 7, "piece": 1, "block": 0} | other
        assert not torch.equal(random_bytes(**asked, frames=50, samples=512), long)
    assert (long >= 128).float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert len(long.unique()) == 256
