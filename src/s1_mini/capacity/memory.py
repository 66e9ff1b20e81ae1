"""Slots for a memory: the one computation by which the engine sizes itself and `s1-mini plan` foretells it.

The engine passes what is free once the checkpoint is loaded; a plan passes what a card has, less weights and context.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
AUTO_SLOTS = 256  # the most where nobody says how many: as far as the graphs' ladder goes
STREAM_ROWS = 2  # rows of the codec a slot: a job may still sound when its slot is another's
DECODED_FRAMES = 2  # at once, a slot (`runtime/sound_maker.py`)
SPARE_FRAMES = 32  # … and for all together
LIVE_TENSORS = 4  # of a convolution block: input, with its past, activation, output
CONTEXT_BYTES = GIB  # the driver's context and all kernels' code: in use before anything is asked for
GRAPH_BYTES = GIB  # captured graphs with their shared pool, workspaces of the libraries
SAFE_SHARE = 0.02  # of the free memory, for what falls between blocks


@dataclass(frozen=True)
class Demand:
    """What an engine puts into memory beside the weights, in bytes."""

    column: int  # keys and values of one column of one slot, and its random numbers
    stream_row: int  # what the codec remembers of one row
    frame: int  # what decoding one frame works with
    prefix_cache: int
    encoding: int  # the half of the codec that reads references, and its work; loaded when first needed
    # What loading and capturing leave beside the weights, taken to be as much as these: parts that were merged, the
    # decoder's weights as its graphs want them. An H200 with 256 slots of S1-mini used 72.7 GB (2026-11), which counts
    # to 70.7 without and to 72.5 with it.
    copies: int

    @property
    def fixed(self) -> int:
        """What does not depend on the number of slots."""
        return GRAPH_BYTES + self.copies + self.prefix_cache + self.encoding + SPARE_FRAMES * self.frame

    def slot(self, columns: int) -> int:
        """Memory that one more slot of `columns` columns takes."""
        return (columns + 1) * self.column + STREAM_ROWS * self.stream_row + DECODED_FRAMES * self.frame


def count_slots(free_bytes: float, demand: Demand, columns: int) -> int:
    """Slots of `columns` columns each for which there is room; 0 if there is none for one."""
    return max(0, int(_room(free_bytes, demand) // demand.slot(columns)))


def fit_slots(
    free_bytes: float, demand: Demand, *, wanted: int, columns: int, needed: int, span: int
) -> tuple[int, int]:
    """Choose slots and their columns: the wanted number with all `columns`, if there is room for it.

    Else as many slots, at most `wanted`, as there is room for with the `needed` columns of a piece of speech. Without
    room for one it is one of as many whole spans of columns as fit, which may be none.
    """
    if count_slots(free_bytes, demand, columns) >= wanted:
        return wanted, columns
    needed = min(needed, columns)
    slots = min(wanted, count_slots(free_bytes, demand, needed))
    if slots:
        return slots, needed
    room = _room(free_bytes, demand) - demand.slot(-1)
    return 1, max(0, int(room // demand.column) - 1) // span * span


def needed_columns(*, reference_frames: int, text_bytes: int, span: int) -> int:
    """Columns for the longest reference that is taken, a piece of text and its speech, in whole spans.

    A piece of 200 bytes is spoken in 15 s or so, 320 frames; thrice its bytes leave room for slow voices.
    """
    return -(-(reference_frames + text_bytes + 3 * text_bytes) // span) * span


def _room(free_bytes: float, demand: Demand) -> float:
    return max(0.0, free_bytes * (1 - SAFE_SHARE) - demand.fixed)
