"""Slots for a memory: the one computation by which the engine sizes itself and `s1-mini plan` foretells it.

The engine passes what is free once the checkpoint is loaded; a plan passes what a card has, less weights and context.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from math import inf

GIB = 2**30
SPAN = 64  # positions of a slot are a multiple of it
MAX_SLOTS = 4096  # as many as an engine may have
AUTO_SLOTS = 256  # the most where nobody says how many: as far as the graphs' ladder goes
STREAM_ROWS = 2  # rows of the codec a slot: a job may still sound when its slot is another's
DECODED_FRAMES = 2  # at once, a slot
SPARE_FRAMES = 32  # … and for all together
CONTEXT_BYTES = GIB  # the driver's context and all kernels' code: in use before anything is asked for
GRAPH_BYTES = GIB  # captured graphs with their shared pool, workspaces of the libraries
SAFE_SHARE = 0.02  # of the free memory, for what falls between blocks


@dataclass(frozen=True)
class Demand:
    """What one stage, or several on one device, put into memory beside the weights, in bytes."""

    position: int = 0  # what is kept of one position of one slot: keys and values, random numbers
    stream_row: int = 0  # what making sound remembers of one row
    frame: int = 0  # what decoding one frame works with
    prefix_cache: int = 0
    encoding: int = 0  # what only reads references, and its work; loaded when first needed
    # What loading and capturing leave beside the weights, taken to be as much as these: parts that were merged, the
    # decoder's weights as its graphs want them. An H200 with 256 slots of S1-mini used 72.7 GB (2026-11), which counts
    # to 70.7 without and to 72.5 with it.
    copies: int = 0
    fixed_slot: int = 0  # what is kept of one slot, however long it is

    def __add__(self, other: Demand) -> Demand:
        return Demand(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Demand)))

    @property
    def fixed(self) -> int:
        """What does not depend on the number of slots."""
        return GRAPH_BYTES + self.copies + self.prefix_cache + self.encoding + SPARE_FRAMES * self.frame

    def slot(self, positions: int) -> int:
        """Memory that one more slot of `positions` positions takes."""
        sound = STREAM_ROWS * self.stream_row + DECODED_FRAMES * self.frame
        return (positions + 1) * self.position + self.fixed_slot + sound


@dataclass(frozen=True)
class Room:
    """A device: what is free on it beside weights and context, in bytes, and what its stages put there."""

    free_bytes: float
    demand: Demand
    name: str = ""

    @property
    def for_slots(self) -> float:
        """What is left for slots."""
        return max(0.0, self.free_bytes * (1 - SAFE_SHARE) - self.demand.fixed)

    def count(self, positions: int) -> float:
        """Slots of `positions` positions each for which there is room; infinite where a slot takes nothing."""
        each = self.demand.slot(positions)
        if not each:
            return inf if self.for_slots else 0
        return self.for_slots // each


def sum_demands(demands: Iterable[Demand]) -> Demand:
    """Give what stages on one device put there together."""
    return reduce(Demand.__add__, demands, Demand())


def count_slots(rooms: Sequence[Room], positions: int) -> int:
    """Slots of `positions` positions each for which there is room on all devices; 0 if there is none for one."""
    slots = min(room.count(positions) for room in rooms)
    return MAX_SLOTS if slots == inf else int(slots)


def fit_slots(rooms: Sequence[Room], *, wanted: int, positions: int, needed: int, span: int) -> tuple[int, int]:
    """Choose slots and their positions: the wanted number with all `positions`, if there is room for it.

    Else as many slots, at most `wanted`, as there is room for with the `needed` positions of a piece of speech, in
    whole spans. Without room for one it is one of as many whole spans as fit, which may be none.
    """
    if count_slots(rooms, positions) >= wanted:
        return wanted, positions
    needed = min(-(-needed // span) * span, positions)
    slots = min(wanted, count_slots(rooms, needed))
    if slots:
        return slots, needed
    if count_slots(rooms, -1) < 1 or not any(room.demand.position for room in rooms):
        return 1, 0  # shorter slots are no smaller
    left = ((room.for_slots - room.demand.slot(-1), room.demand.position) for room in rooms)
    return 1, min(max(0, int(free // position) - 1) // span * span for free, position in left if position)
