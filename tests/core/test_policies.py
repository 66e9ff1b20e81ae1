"""The availability of input decides when a stage runs, never what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.core.stage import Progress, StagePolicy, Unit
from tests.core.room import CODEC, MODEL
from tests.toy.stages import policies

POLICIES = [MODEL, CODEC, *policies(4)]


def units_of(
    policy: StagePolicy, total: int, arrivals: list[int], profile: str, facts: Mapping[str, int] = MappingProxyType({})
) -> list[Unit]:
    """All units of an utterance whose input of `total` items arrives in the given parts."""
    made, available, consumed, produced = [], 0, 0, 0
    parts = iter(arrivals)
    while True:
        is_final = available == total
        progress = Progress(available, is_final, consumed, produced, len(made), 50, profile, facts)
        if policy.is_done(progress):
            return made
        unit = policy.next_unit(progress)
        if unit is None:
            assert not is_final, "all is there, and nothing comes of it"
            asks_at = policy.asks_at(progress)
            assert asks_at > available
            while available < min(asks_at, total):
                early = progress._replace(available=available)
                assert policy.next_unit(early) is None, "it would have had a unit before it is asked again"
                available = min(total, available + next(parts, total))
            continue
        made.append(unit)
        consumed, produced = consumed + unit.consumes, produced + unit.steps


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@given(
    total=st.integers(0, 90),
    arrivals=st.lists(st.integers(1, 9), max_size=100),
    profile=st.sampled_from(["ttfa", "balanced", "throughput"]),
)
def test_the_units_of_an_utterance_do_not_depend_on_when_its_items_come(
    policy: StagePolicy, total: int, arrivals: list[int], profile: str
) -> None:
    assert units_of(policy, total, arrivals, profile) == units_of(policy, total, [total], profile)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@given(total=st.integers(0, 90), profile=st.sampled_from(["ttfa", "balanced", "throughput"]))
def test_units_consume_every_item_once_and_only_available_ones(policy: StagePolicy, total: int, profile: str) -> None:
    units = units_of(policy, total, [total], profile)

    assert sum(unit.consumes for unit in units) == total
    assert all(0 <= unit.start <= unit.stop <= total for unit in units)


@pytest.mark.parametrize(
    ("size", "ready", "taken"),
    [(25, 3, 3), (25, 5, 4), (25, 10, 8), (25, 15, 15), (25, 99, 16), (8, 11, 8), (4, 3, 3), (4, 12, 12), (1, 15, 15)],
)
def test_a_call_is_padded_only_if_that_costs_less_per_chunk_than_a_smaller_call(
    size: int, ready: int, taken: int
) -> None:
    assert CODEC.num_taken(size, ready) == taken


def test_a_call_without_other_batch_sizes_takes_one_chunk() -> None:
    assert replace(CODEC, rows=(1,)).num_taken(25, 10) == 1
