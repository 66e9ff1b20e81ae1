"""Scores of a text that is read while it is spoken: those of later tokens are marked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from s1_mini.alignment.head import UNREAD
from s1_mini.core.messages import Begin, Conditions
from s1_mini.kernels.head_scores import KeptHead
from s1_mini.runtime.text_scores import TextScores
from s1_mini.types import SamplingParams


@pytest.mark.parametrize("num_heads", [1, 2])
def test_tokens_that_are_read_later_are_marked_in_copied_and_in_direct_scores(num_heads: int) -> None:
    values = torch.randn(num_heads, 2, 12, generator=torch.Generator().manual_seed(0))
    heads = [KeptHead(0, head, values[head]) for head in range(num_heads)]
    scores = TextScores(heads)
    conditions = Conditions(SamplingParams(), 0, 0, 8, {}, text_start=5, text_stop=9)
    scores.begin(Begin(1, 0, np.zeros((3, 1)), None, 0, 8, 1, 0, 3, conditions))

    for length, num_read in ((4, 0), (5, 0), (7, 2), (9, 4), (12, 4)):
        lengths = [0, length]
        found, copied = scores.read([1], lengths, others=[1])[1], scores.copy([1], lengths)()[1]
        np.testing.assert_array_equal(found, copied)
        each = np.atleast_2d(found)
        expected = values[:, 1, :length]
        expected = (expected if num_heads == 1 else expected.log_softmax(-1))[:, 5:9].numpy()
        np.testing.assert_allclose(each[:, :num_read], expected, atol=1e-6)
        assert (each[:, max(num_read, 1) :] == UNREAD).all()
        assert num_read or (each[:, 0] == 0).all()  # nothing is read, so the path is at the first token
