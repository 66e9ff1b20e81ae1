"""The memory and work of a checkpoint, as counted by its family, and the slots that fit a device.

The engine computes its slots from free memory once the checkpoint is loaded; `s1-mini plan` computes them from the
memory of a GPU, minus the weights and the driver's context. `docs/internals/complexity.md` has the formulas of S1.
Memory is in bytes; a multiplication and an addition are two operations. The operations of small parts (norms, random
numbers, embeddings) are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

GIB = 2**30
SPAN = 64  # the number of positions of a slot is a multiple of this
MAX_SLOTS = 4096  # per engine
AUTO_SLOTS = 256  # default limit: the largest batch size of the captured steps
STREAM_ROWS = 2  # codec rows per slot: an utterance may still be decoded while its slot generates the next one
DECODED_FRAMES = 2  # frames decoded at once, per slot
SPARE_FRAMES = 32  # additional frames, for all slots together
CONTEXT_BYTES = GIB  # the driver's context and all kernels' code, before the first allocation
PREFIX_CACHE_BYTES = 256_000_000  # default size of the prefix cache, before slots are counted
GRAPH_BYTES = GIB  # captured graphs with their shared pool, workspaces of the libraries
SAFE_SHARE = 0.02  # share of the free memory reserved for fragmentation


@dataclass(frozen=True)
class MemoryRequirement:
    """Memory of one stage, or of several on one device, in addition to the weights, in bytes."""

    position: int = 0  # bytes per position of a slot: keys and values, random numbers
    stream_row: int = 0  # the codec's state of one row
    frame: int = 0  # working memory of decoding one frame
    prefix_cache: int = 0
    reference_states: int = 0  # limit of the cache for the codec's states after references
    encoding: int = 0  # the encoder of references and its working memory; loaded at first use
    # Memory that remains in use after loading and capturing: merged parts, the decoder's weights in the layout of its
    # graphs. Estimated from the size of the weights. An H200 with 256 slots of S1-mini used 72.7 GB (2026-11); the
    # computed figure is 70.7 without `copies` and 72.5 with it.
    copies: int = 0
    fixed_slot: int = 0  # bytes per slot, regardless of its length

    def __add__(self, other: MemoryRequirement) -> MemoryRequirement:
        return MemoryRequirement(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(MemoryRequirement))
        )

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the number of slots."""
        return (
            GRAPH_BYTES
            + self.copies
            + self.prefix_cache
            + self.reference_states
            + self.encoding
            + SPARE_FRAMES * self.frame
        )

    def slot(self, positions: int) -> int:
        """Return the bytes of one more slot of `positions` positions."""
        sound = STREAM_ROWS * self.stream_row + DECODED_FRAMES * self.frame
        return (positions + 1) * self.position + self.fixed_slot + sound


@dataclass(frozen=True)
class DeviceMemory:
    """A device: the bytes that weights and context leave free, and the requirement of its stages."""

    free_bytes: float
    demand: MemoryRequirement
    name: str = ""

    @property
    def for_slots(self) -> float:
        return max(0.0, self.free_bytes * (1 - SAFE_SHARE) - self.demand.fixed)

    def count(self, positions: int) -> int:
        """Return how many slots of `positions` positions fit; `MAX_SLOTS` if a slot takes no memory."""
        each = self.demand.slot(positions)
        if not each:
            return MAX_SLOTS if self.for_slots else 0
        return int(self.for_slots // each)

    def left(self, slots: int, positions: int) -> int:
        """Return the bytes that `slots` slots of `positions` positions leave free."""
        return max(0, int(self.for_slots - slots * self.demand.slot(positions)))


def sum_demands(demands: Iterable[MemoryRequirement]) -> MemoryRequirement:
    return sum(demands, MemoryRequirement())


def count_slots(rooms: Sequence[DeviceMemory], positions: int) -> int:
    """Return how many slots of `positions` positions fit on all devices."""
    return min(room.count(positions) for room in rooms)


def fit_slots(rooms: Sequence[DeviceMemory], *, requested: int, positions: int, needed: int) -> tuple[int, int]:
    """Choose the number of slots and their positions: `requested` slots with all `positions` if they fit.

    Otherwise slots get only the `needed` positions of an utterance, rounded up to a multiple of `SPAN`, and there are
    as many as fit, at most `requested`. If not even one slot fits, there is one slot with the largest number of
    positions that fits: a multiple of `SPAN`, possibly 0.
    """
    if count_slots(rooms, positions) >= requested:
        return requested, positions
    needed = min(-(-needed // SPAN) * SPAN, positions)
    slots = min(requested, count_slots(rooms, needed))
    if slots:
        return slots, needed
    if count_slots(rooms, -1) < 1 or not any(room.demand.position for room in rooms):
        return 1, 0  # not even a slot without positions fits, or positions take no memory
    left = ((room.for_slots - room.demand.slot(-1), room.demand.position) for room in rooms)
    return 1, min(max(0, int(free // position) - 1) // SPAN * SPAN for free, position in left if position)


@dataclass(frozen=True)
class Formats:
    """Bytes per stored number."""

    weights: float = 2  # except those of large products
    large: float = 2  # weights of large products
    kv: float = 2  # keys and values
    codec: int = 2  # bytes per weight of the codec
    is_fp8: bool = False  # whether large products are in e4m3; families may not support it for all of them


@dataclass(frozen=True)
class Cost:
    """Bytes of weights, keys and values to read, and operations."""

    num_bytes: float
    operations: float


@dataclass(frozen=True)
class StageSizes:
    """One stage of a checkpoint. Costs are always per frame, even if a frame takes several steps or a part of one.

    `bound` is the stage's bottleneck: reading the weights at every step, or computing.
    """

    weight_bytes: float
    step: Callable[[int, int], Cost]  # cost of a frame, by the number of rows and of positions in use per row
    bound: Literal["memory", "compute"]
    is_single: bool = False  # computes in 32 bits, without tensor cores


@dataclass(frozen=True)
class Sizes:
    """The sizes of one checkpoint. Stages are in the order of the chain, and named as `placement` names them."""

    stages: Mapping[str, StageSizes]
    demands: Mapping[str, MemoryRequirement]
    frame_s: float  # seconds of audio of one frame
    max_positions: int  # per slot
    needed_positions: Callable[[float, int], int]  # by seconds of the reference and bytes of a sentence piece

    def weight_bytes(self, bound: Literal["memory", "compute"]) -> float:
        """Return the weight bytes of all stages with this bottleneck."""
        return sum(stage.weight_bytes for stage in self.stages.values() if stage.bound == bound)

    def with_prefix_cache(self, num_bytes: int) -> Sizes:
        """Return the sizes with a prefix cache, which is on the device of the first stage."""
        first = next(iter(self.demands))
        return replace(self, demands={**self.demands, first: replace(self.demands[first], prefix_cache=num_bytes)})

    @cached_property
    def demand(self) -> MemoryRequirement:
        """Demand of all stages on one device."""
        return sum_demands(self.demands.values())
