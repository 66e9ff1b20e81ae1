"""The rows of a step: batch sizes of captured steps, context lengths, active slots, and slots that share a prefix."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor

from s1_mini.kernels.common_attention import (
    FEWEST_ROWS,
    LEADER,
    LENGTH,
    MAX_COMMON,
    MEMBERS,
    WHOLE_BLOCKS,
    CommonPrefixes,
)
from s1_mini.layers.staging import Writes

SPAN = 64  # steps attend to a multiple of this many positions, itself a multiple of the kernel's block size
_LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CPU_ROWS = 4  # on a CPU, rows are padded to a multiple of this, because products of one to three rows round differently
WORTH_POSITIONS = 64  # minimum length of a shared prefix; of a shorter prefix, each row reads its own copy


def ladder(slots: int) -> list[int]:
    """Return the batch sizes of captured steps, ascending; a call uses the smallest size that fits."""
    return [*(rows for rows in _LADDER if rows < slots), slots]


def fit(sizes: Sequence[int], count: int) -> int:
    """Return the first of ascending sizes that is at least `count`."""
    return next(size for size in sizes if size >= count)


def padded_rows(rows: int, slots: int, device: torch.device) -> int:
    """Return the number of rows to compute for the first `rows` of `slots`; on a CPU, a multiple of `CPU_ROWS`."""
    return min(-(-rows // CPU_ROWS) * CPU_ROWS, slots) if device.type == "cpu" else rows


def whole_spans(positions: int) -> int:
    """Round positions up to a multiple of `SPAN`."""
    return -(-positions // SPAN) * SPAN


class SteppingSlots:
    """The slots that take part in a step. Steps read them from `flags`, bool [slots] on the device."""

    def __init__(self, flags: Tensor, writes: Writes) -> None:
        self._flags, self._writes = flags, writes
        self._now: frozenset[int] | None = None

    def choose(self, slots: Collection[int]) -> None:
        """Choose the slots of the next step; `writes` must run before it."""
        chosen = frozenset(slots)
        if chosen != self._now:
            flags = np.zeros(len(self._flags), np.bool_)
            flags[list(chosen)] = True
            self._writes.first(self._flags, flags)
            self._now = chosen


class SharedPrefixes:
    """Groups the slots that hold the same prefix, so that attention reads the prefix once; keeps `tables` up to date.

    Slots belong together only if they share one saved copy of the prefix: one slot saved it, and the others loaded it.
    Only then are all bits equal. The slots of a prefix are divided into groups of nearly equal size, and all slots of a
    group read the copy in its first slot. A slot that begins an utterance leaves its group, and the other slots are
    grouped again before their next step.
    """

    def __init__(self, tables: CommonPrefixes, writes: Writes) -> None:
        self.tables, self.writes = tables, writes
        self._numbers = np.zeros(tables.slots, np.int64)  # number of each slot's prefix; 0: none
        self._lengths = np.zeros(tables.slots, np.int64)  # number of positions of each slot's prefix that may be shared
        self._known: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # prefixes and their numbers, by identity
        self._next = count(1)
        self._written_for = 0  # number of rows for which the tables are up to date; 0: they are out of date
        self._has_groups = False  # whether the tables have any group

    def hold(self, slot: int, prefix: Tensor, positions: int) -> None:
        """Record that a slot's first positions are those of a saved `prefix`."""
        length = min(positions // WHOLE_BLOCKS * WHOLE_BLOCKS, MAX_COMMON)
        number = self._number(prefix) if length >= WORTH_POSITIONS else 0
        self._set(slot, number, length)

    def forget(self, slot: int) -> None:
        """Record that a slot's positions will be overwritten."""
        self._set(slot, 0, 0)

    def write(self, rows: int) -> bool:
        """Update the tables for a step of the first `rows` slots; return whether any of them share a prefix.

        `writes` must run before the step.
        """
        if rows != self._written_for:
            table = self._table(rows)
            self._has_groups = bool(table[:rows].any())
            self.writes.first(self.tables.table, table)
            self._written_for = rows
        return self._has_groups

    def _set(self, slot: int, number: int, length: int) -> None:
        if self._numbers[slot] != number:
            self._numbers[slot], self._lengths[slot] = number, length
            self._written_for = 0

    def _number(self, prefix: Tensor) -> int:
        """Return the number of a prefix.

        The number is forgotten when the prefix is freed, because another prefix may then get its address.
        """
        key = id(prefix)
        reference, number = self._known.get(key, (None, 0))
        if reference is None or reference() is not prefix:
            number = next(self._next)
            self._known[key] = weakref.ref(prefix, lambda _: self._known.pop(key, None)), number
        return number

    def _table(self, rows: int) -> np.ndarray:
        """Group the first `rows` slots; return the content of `CommonPrefixes.table`."""
        table = np.zeros(len(self.tables.table), np.int32)
        starts, groups = table[: self.tables.slots], table[self.tables.slots :].reshape(self.tables.groups.shape)
        groups[:, MEMBERS:] = -1
        slots, group, place = share_out(self._numbers[:rows], self.tables.group_rows)
        there = group < rows // FEWEST_ROWS  # attention does not read further groups
        slots, group, place = slots[there], group[there], place[there]
        starts[slots] = groups[group, LENGTH] = self._lengths[slots]
        groups[group, MEMBERS + place] = slots
        groups[:, LEADER] = np.maximum(groups[:, MEMBERS], 0)
        return table


def share_out(numbers: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide slots with the same number into groups of nearly equal size, at most `most` slots each.

    `numbers` [slots] has each slot's number; slots with number 0 belong to no group. Groups have at least `FEWEST_ROWS`
    slots; if `most` is small, some slots may therefore remain without a group. Returns three arrays [n]: the slots that
    belong to groups, the group of each slot, counted from 0, and the place of each slot in its group.
    """
    _, kinds, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    slots = np.flatnonzero((numbers > 0) & (sizes[kinds] >= FEWEST_ROWS))
    slots = slots[np.argsort(kinds[slots], kind="stable")]
    _, firsts, sizes = np.unique(kinds[slots], return_index=True, return_counts=True)
    pieces = np.minimum(-(-sizes // most), sizes // FEWEST_ROWS)
    rank = np.arange(len(slots)) - np.repeat(firsts, sizes)
    fits = rank < np.repeat(pieces * most, sizes)
    slots, rank, sizes = slots[fits], rank[fits], np.minimum(sizes, pieces * most)
    total, parts, before = (np.repeat(each, sizes) for each in (sizes, pieces, np.cumsum(pieces) - pieces))
    piece = rank * parts // total
    return slots, before + piece, rank + -piece * total // parts
