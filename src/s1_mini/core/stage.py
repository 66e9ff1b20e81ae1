"""The policy of a stage, as the scheduler sees it: its input and output, and its next unit of work.

A family is a chain of stages. An item is one element that a stage passes to the next: a token, a frame of codes or of a
mel, a sample. A unit of work begins in a slot with a window of items; it may prefill, then it makes steps. A language
model has one long unit per utterance, a model that works in windows has one unit per window, and a codec, or any other
stage that is not autoregressive, has units of one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from s1_mini.types import ChunkProfile

NEVER = 2**62  # items


@dataclass(frozen=True)
class Spec:
    """The type of a stream of items between two stages."""

    dtype: str  # numpy's name
    shape: tuple[int, ...] = ()  # shape of one item
    rate: float = 0.0  # items per second of speech; 0 if they have no rate, such as a prompt


class Progress(NamedTuple):
    """The progress of one utterance at one stage, in items."""

    available: int  # items from the previous stage
    is_final: bool  # whether the input is complete
    consumed: int  # items that finished units have consumed
    produced: int  # items of this stage's output
    units: int  # finished units
    max_steps: int  # the request's limit for an autoregressive stage
    profile: ChunkProfile
    facts: Mapping[str, int] = MappingProxyType({})  # `PromptTokens.facts` of the utterance


class Unit(NamedTuple):
    """A unit of work; an utterance has at most one at a time at a stage."""

    start: int  # first input item
    stop: int  # end of the input items, exclusive
    consumes: int  # number of input items that are no longer new to later units
    steps: int = 1  # maximum; a stop ends the unit sooner
    prefill: int = 0  # positions to read before the first step
    past: int = 0  # number of the stage's own last items that are also input
    size: int = 1  # shape class: one call makes steps of units of one size


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """A stage from the scheduler's point of view. Stages differ in `next_unit`."""

    name: str
    input: Spec
    output: Spec
    slots: int  # rows of the stage's state
    holds: Literal["utterance", "unit"] = "utterance"  # how long a sequence keeps its slot and state
    is_autoregressive: bool = True  # all units step together; otherwise each call has the most urgent ones
    stops: bool = False  # whether a unit ends by itself; if it reaches its step limit first, the speech was cut
    is_remote: bool = False  # runs in another process; a thread waits for it and reports dropped slots
    helped_size: int = 0  # another thread may generate first audio of units up to this size at the same time
    items_a_turn: int = 0  # limit per turn of a thread with several stages; at least one call is made
    prefill_positions: int = 256  # limit per plan, for all units together
    max_prefills: int = 4  # limit per plan, because each has a fixed cost
    not_finite: str = "the model's output was not finite"  # error message for NaN and infinity

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next unit of work, or None if more input is needed.

        The available input may affect when a unit is returned, but not which one: audio must not depend on timing.
        """
        raise NotImplementedError

    def asks_at(self, progress: Progress) -> int:
        """Return the number of available items at which `next_unit`, which returned None, is called again.

        It is always called again when the input is complete.
        """
        return progress.available + 1

    def is_done(self, progress: Progress) -> bool:
        """Return whether the utterance, whose input is complete, needs no further unit."""
        return progress.is_final and progress.consumed >= progress.available

    def most_together(self, size: int) -> int:  # noqa: ARG002 - overridden by stages whose limit depends on it
        """Return the maximum number of units of this size in one call."""
        return self.slots


@dataclass(frozen=True, kw_only=True)
class Autoregressive(StagePolicy):
    """One unit: prefill the whole input, then step until the model stops.

    The last `held_back` positions are not prefilled: they are the input of the first step.
    """

    held_back: int = 0
    stops: bool = True

    def next_unit(self, progress: Progress) -> Unit | None:
        if not progress.is_final or progress.units:
            return None
        length = progress.available
        return Unit(0, length, length, progress.max_steps, prefill=max(0, length - self.held_back))

    def asks_at(self, progress: Progress) -> int:  # noqa: ARG002 - it waits for the end
        return NEVER


@dataclass(frozen=True, kw_only=True)
class Chunks(StagePolicy):
    """Works on chunks of items: a causal codec with state, or a vocoder with look-ahead.

    `sizes` are the items of the first, second, … chunk; the last size repeats. Only the last chunk may be shorter.
    """

    is_autoregressive: bool = False
    sizes: Mapping[ChunkProfile, tuple[int, ...]]
    context: int = 0  # earlier items that are input again
    look_ahead: int = 0  # later items that are input, unless the utterance ends first
    rows: Sequence[int] = (1,)  # batch sizes, limited by `max_items`
    max_items: int = 1  # limit for all units of one call; a single unit may have more

    @property
    def classes(self) -> list[int]:
        """All chunk sizes, ascending; a shorter last chunk counts as the next larger size."""
        return sorted({size for sizes in self.sizes.values() for size in sizes})

    @property
    def calls(self) -> list[tuple[int, int]]:
        """All captured pairs of batch size and chunk size, largest first."""
        made = [(rows, size) for size in self.classes for rows in self.rows if rows <= self.most_together(size)]
        return sorted(made, key=lambda call: -call[0] * call[1])

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next chunk once its input, including the look-ahead, is available."""
        sizes = self.sizes[progress.profile]
        size, rest = sizes[min(progress.units, len(sizes) - 1)], progress.available - progress.consumed
        if rest < size + self.look_ahead and not (progress.is_final and rest):
            return None
        taken = min(size, rest)
        return Unit(
            start=max(0, progress.consumed - self.context),
            stop=min(progress.consumed + taken + self.look_ahead, progress.available),
            consumes=taken,
            size=next(each for each in self.classes if each >= taken),
        )

    def asks_at(self, progress: Progress) -> int:
        """Return the end of the next chunk with its look-ahead."""
        sizes = self.sizes[progress.profile]
        return progress.consumed + sizes[min(progress.units, len(sizes) - 1)] + self.look_ahead

    def most_together(self, size: int) -> int:
        return max(rows for rows in self.rows if rows == 1 or rows * size <= self.max_items)
