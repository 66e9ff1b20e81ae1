"""Slots for a memory: the one computation by which the engine sizes itself and `s1-mini plan` foretells it.

The engine passes what is free once the checkpoint is loaded; a plan passes what a card has, less weights and context.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
SPAN = 64  # positions of a slot are a multiple of it
AUTO_SLOTS = 256  # the most where nobody says how many: as far as the graphs' ladder goes
STREAM_ROWS = 2  # rows of the codec a slot: a job may still sound when its slot is another's
DECODED_FRAMES = 2  # at once, a slot
SPARE_FRAMES = 32  # … and for all together
CONTEXT_BYTES = GIB  # the driver's context and all kernels' code: in use before anything is asked for
GRAPH_BYTES = GIB  # captured graphs with their shared pool, workspaces of the libraries
SAFE_SHARE = 0.02  # of the free memory, for what falls between blocks


@dataclass(frozen=True)
class Demand:
    """What an engine puts into memory beside the weights, in bytes."""

    position: int  # what all stages keep of one position of one slot: keys and values, random numbers
    stream_row: int  # what making sound remembers of one row
    frame: int  # what decoding one frame works with
    prefix_cache: int
    encoding: int  # what only reads references, and its work; loaded when first needed
    # What loading and capturing leave beside the weights, taken to be as much as these: parts that were merged, the
    # decoder's weights as its graphs want them. An H200 with 256 slots of S1-mini used 72.7 GB (2026-11), which counts
    # to 70.7 without and to 72.5 with it.
    copies: int
    fixed_slot: int = 0  # what all stages keep of one slot, however long it is

    @property
    def fixed(self) -> int:
        """What does not depend on the number of slots."""
        return GRAPH_BYTES + self.copies + self.prefix_cache + self.encoding + SPARE_FRAMES * self.frame

    def slot(self, positions: int) -> int:
        """Memory that one more slot of `positions` positions takes."""
        sound = STREAM_ROWS * self.stream_row + DECODED_FRAMES * self.frame
        return (positions + 1) * self.position + self.fixed_slot + sound


def count_slots(free_bytes: float, demand: Demand, positions: int) -> int:
    """Slots of `positions` positions each for which there is room; 0 if there is none for one."""
    return max(0, int(_room(free_bytes, demand) // demand.slot(positions)))


def fit_slots(
    free_bytes: float, demand: Demand, *, wanted: int, positions: int, needed: int, span: int
) -> tuple[int, int]:
    """Choose slots and their positions: the wanted number with all `positions`, if there is room for it.

    Else as many slots, at most `wanted`, as there is room for with the `needed` positions of a piece of speech, in
    whole spans. Without room for one it is one of as many whole spans as fit, which may be none.
    """
    if count_slots(free_bytes, demand, positions) >= wanted:
        return wanted, positions
    needed = min(-(-needed // span) * span, positions)
    slots = min(wanted, count_slots(free_bytes, demand, needed))
    if slots:
        return slots, needed
    if not demand.position:  # then shorter slots are no smaller
        return 1, 0
    room = _room(free_bytes, demand) - demand.slot(-1)
    return 1, max(0, int(room // demand.position) - 1) // span * span


def _room(free_bytes: float, demand: Demand) -> float:
    return max(0.0, free_bytes * (1 - SAFE_SHARE) - demand.fixed)
