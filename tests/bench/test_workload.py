"""A workload is the same for the same seed and repeats no sentence."""

from __future__ import annotations

import pytest

from s1_mini.bench.workload import MAX_ASKS, make_workload, planned_arrivals, sentence
from s1_mini.exceptions import ParameterError


def test_the_same_seed_gives_the_same_workload() -> None:
    assert make_workload(5, 1, 10) == make_workload(5, 1, 10) != make_workload(5, 2, 10)


def test_every_request_has_another_sentence() -> None:
    asks = make_workload(5000, 0, 10)

    assert len({ask.text for ask in asks}) == 5000
    assert len({sentence(number) for number in range(MAX_ASKS)}) == MAX_ASKS == 20**4
    assert sentence(0) == "The old gardener found the letters before breakfast."
    with pytest.raises(ParameterError, match="requests"):
        make_workload(MAX_ASKS + 1, 0, 10)


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    arrivals = planned_arrivals(4000, 2.0, 0)
    gaps = [later - sooner for sooner, later in zip([0.0, *arrivals], arrivals, strict=False)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert arrivals == planned_arrivals(4000, 2.0, 0) != planned_arrivals(4000, 2.0, 1)
    assert arrivals == sorted(arrivals)
    assert mean == pytest.approx(0.5, rel=0.05)
    assert variance == pytest.approx(0.25, rel=0.15), "exponential gaps: the variance is the mean squared"
