"""What a checkpoint weighs and costs, as its family counts it: one entry for each of its stages.

`docs/complexity.md` has the formulas of S1 in words; `s1-mini plan` divides them by what a card can read and compute a
second. Bytes, and operations: multiplying and adding are two. What is small beside it (norms, draws, embeddings) is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from s1_mini.capacity.memory import Demand, sum_demands


@dataclass(frozen=True)
class Formats:
    """Bytes of the numbers that are stored: of all weights but the large products', of those, of keys and values."""

    weights: float = 2
    large: float = 2
    kv: float = 2
    codec: int = 2  # of what makes sound
    is_fp8: bool = False  # whether the large products are in e4m3, which a family may not have everywhere


@dataclass(frozen=True)
class Cost:
    """Bytes of weights, keys and values that are read, and operations."""

    num_bytes: float
    operations: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.num_bytes + other.num_bytes, self.operations + other.operations)


@dataclass(frozen=True)
class StageSizes:
    """One stage of a checkpoint. A stage that makes several steps a frame, or one for several, counts all or its part.

    `bound` is what holds it up: reading its weights at every step, or computing.
    """

    weight_bytes: float
    step: Callable[[int, int], Cost]  # of a frame of sound, by rows and by positions in use in each
    bound: Literal["memory", "compute"]
    is_single: bool = False  # computes in 32 bits, without tensor cores


@dataclass(frozen=True)
class Sizes:
    """One checkpoint as a plan needs it. Stages are in the order of the chain, and named as `placement` names them."""

    stages: Mapping[str, StageSizes]
    demands: Mapping[str, Demand]
    frame_s: float  # seconds of sound of one frame
    max_positions: int  # of a slot
    needed_positions: Callable[[float, int], int]  # for a reference of seconds, and a piece of bytes of text

    def weight_bytes(self, bound: Literal["memory", "compute"]) -> float:
        """Give the weights of all stages that are held up so."""
        return sum(stage.weight_bytes for stage in self.stages.values() if stage.bound == bound)

    @cached_property
    def demand(self) -> Demand:
        """What all stages take on one device."""
        return sum_demands(self.demands.values())
