"""Slots with the same saved prefix are grouped; other slots are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from s1_mini.kernels.common_attention import FEWEST_ROWS, LEADER, LENGTH, MAX_COMMON, MEMBERS, CommonPrefixes
from s1_mini.layers.staging import Writes
from s1_mini.runtime.rows import WORTH_POSITIONS, SharedPrefixes, share_out

SLOTS, MOST = 24, 8


@pytest.fixture
def shared() -> SharedPrefixes:
    groups = SLOTS // FEWEST_ROWS
    tables = CommonPrefixes(torch.zeros(SLOTS + groups * (MEMBERS + MOST), dtype=torch.int32), SLOTS, MOST)
    return SharedPrefixes(tables, Writes(torch.device("cpu")))


def groups_of(shared: SharedPrefixes, rows: int = SLOTS) -> list[tuple[int, int, list[int]]]:
    """Return leader, positions and members of each group."""
    shared.write(rows)
    shared.writes.run()
    lines = [line for line in shared.tables.groups.tolist() if line[LENGTH]]
    return [(line[LEADER], line[LENGTH], [slot for slot in line[MEMBERS:] if slot >= 0]) for line in lines]


def hold(shared: SharedPrefixes, slots: Sequence[int], prefix: torch.Tensor, positions: int = 100) -> None:
    for slot in slots:
        shared.hold(slot, prefix, positions)


def test_slots_of_a_prefix_are_a_group_led_by_the_first_and_the_others_begin_at_zero(shared: SharedPrefixes) -> None:
    hold(shared, (9, 3, 20, 4), torch.zeros(1))

    assert groups_of(shared) == [(3, 96, [3, 4, 9, 20])]
    assert np.flatnonzero(shared.tables.starts.numpy()).tolist() == [3, 4, 9, 20]


def test_slots_over_the_group_limit_are_split_evenly(shared: SharedPrefixes) -> None:
    prefix = torch.zeros(1)
    hold(shared, range(MOST + 1), prefix)
    assert [len(members) for _, _, members in groups_of(shared)] == [5, 4]

    hold(shared, range(2 * MOST + 1), prefix)
    found = groups_of(shared)
    assert [len(members) for _, _, members in found] == [6, 6, 5]
    assert [leader for leader, _, _ in found] == [0, 6, 12]


def test_few_rows_and_short_prefixes_are_not_grouped(shared: SharedPrefixes) -> None:
    few, short = torch.zeros(1), torch.zeros(1)
    hold(shared, range(FEWEST_ROWS - 1), few)
    hold(shared, range(10, 20), short, WORTH_POSITIONS - 1)

    assert groups_of(shared) == []
    assert not shared.tables.starts.any()


def test_the_shared_length_is_in_whole_blocks_and_bounded(shared: SharedPrefixes) -> None:
    middle, long = torch.zeros(1), torch.zeros(1)
    hold(shared, range(4), middle, 95)
    hold(shared, range(4, 8), long, 5000)

    assert [length for _, length, _ in groups_of(shared)] == [64, MAX_COMMON]


def test_only_slots_of_the_step_are_in_groups_and_there_are_not_too_many_groups(shared: SharedPrefixes) -> None:
    hold(shared, range(2, 12), torch.zeros(1))

    assert groups_of(shared, 5) == []
    assert groups_of(shared, 8) == [(2, 96, [2, 3, 4, 5, 6, 7])]
    assert len(groups_of(shared, SLOTS)) == 2


def test_when_the_leader_is_reset_the_next_slot_leads(shared: SharedPrefixes) -> None:
    prefix = torch.zeros(1)
    hold(shared, range(6), prefix)
    assert groups_of(shared)[0][0] == 0

    shared.forget(0)
    assert groups_of(shared) == [(1, 96, [1, 2, 3, 4, 5])]
    shared.forget(1)
    shared.forget(2)
    assert groups_of(shared) == []
    hold(shared, (0, 1), prefix)
    assert groups_of(shared) == [(0, 96, [0, 1, 3, 4, 5])]


def test_a_freed_prefix_is_not_confused_with_another_at_its_address(shared: SharedPrefixes) -> None:
    for slot in range(8):  # each is freed before the next is allocated
        hold(shared, (slot,), torch.zeros(1))

    assert groups_of(shared) == []
    assert not shared._known


def test_tables_are_written_only_when_something_changed(
    shared: SharedPrefixes, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = torch.zeros(1)
    hold(shared, range(6), prefix)
    shared.write(SLOTS)
    monkeypatch.setattr(shared, "_table", lambda _: pytest.fail("written again"))

    shared.write(SLOTS)
    hold(shared, range(6), prefix)
    shared.write(SLOTS)


@pytest.mark.parametrize("seed", range(20))
def test_slots_are_distributed_once_and_evenly(seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 6, 60)

    slots, group, place = share_out(numbers, MOST)

    expected = [slot for slot in range(60) if numbers[slot] and (numbers == numbers[slot]).sum() >= FEWEST_ROWS]
    assert sorted(slots.tolist()) == expected
    for number in set(group.tolist()):
        members = slots[group == number]
        assert len(set(numbers[members].tolist())) == 1
        assert FEWEST_ROWS <= len(members) <= MOST
        assert sorted(place[group == number].tolist()) == list(range(len(members)))
    assert sorted(set(group.tolist())) == list(range(len(set(group.tolist()))))


@pytest.mark.parametrize("most", [4, 5, 6])
@pytest.mark.parametrize("size", range(4, 30))
def test_small_groups_are_full_before_any_has_too_few(most: int, size: int) -> None:
    slots, group, place = share_out(np.ones(size, np.int64), most)

    members = np.bincount(group)
    assert members.min() >= FEWEST_ROWS
    assert members.max() <= most
    assert len(set(zip(group.tolist(), place.tolist(), strict=True))) == len(slots) == len(set(slots.tolist()))
    assert size - len(slots) < FEWEST_ROWS
