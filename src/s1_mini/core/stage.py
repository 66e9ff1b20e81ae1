"""What the scheduler knows about a stage: its input and output, and which unit of work comes next.

A family is a chain of stages. An item is what one stage hands to the next: a token, a frame of codes or of a mel, a
sample. A unit of work begins in a slot with a window of items; it may prefill, then it makes steps. One form fits all
stages: a language model has one long unit, a model that works in windows has one for each window, and a codec, or any
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
    """A stream of items, as one stage hands it to the next."""

    dtype: str  # numpy's name
    shape: tuple[int, ...] = ()  # shape of one item
    rate: float = 0.0  # items per second of speech; 0 for a stream that is not speech, such as a prompt


class Progress(NamedTuple):
    """Where one utterance stands at one stage, in items."""

    available: int  # items from the previous stage
    is_final: bool  # whether no more will come
    consumed: int  # items that finished units have consumed
    produced: int  # items of this stage's output
    units: int  # finished
    max_steps: int  # the request's limit for an autoregressive stage
    profile: ChunkProfile
    facts: Mapping[str, int] = MappingProxyType({})  # `PromptTokens.facts` of the utterance


class Unit(NamedTuple):
    """A unit of work; an utterance has at most one at a time at a stage."""

    start: int  # first item that it sees of the stage before
    stop: int  # one past the last
    consumes: int  # items that later units do not count as new
    steps: int = 1  # at most; a stop ends it sooner
    prefill: int = 0  # positions to read before the first step
    past: int = 0  # number of the stage's own last items that are input, too
    size: int = 1  # shape class: one call makes steps of units of one size


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """A stage as the scheduler sees it. Stages differ in `next_unit`."""

    name: str
    input: Spec
    output: Spec
    slots: int  # rows of the stage's state
    holds: Literal["utterance", "unit"] = "utterance"  # how long a slot, with its state, is kept
    is_autoregressive: bool = True  # all units step together; else the most urgent are chosen for each call
    stops: bool = False  # whether a unit ends by itself; if so, running out of steps cuts the speech off
    is_remote: bool = False  # runs in another process; a thread waits for it and reports dropped slots
    helped_size: int = 0  # another thread may generate first audio of units up to this size at the same time
    items_a_turn: int = 0  # per turn of a thread with several stages; one call at least
    prefill_positions: int = 256  # per plan, of all units
    max_prefills: int = 4  # per plan: each has a fixed cost
    not_finite: str = "the model's output was not finite"  # error message for NaN and infinity

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next unit of work, or None if more input is needed.

        The available input may decide when a unit is returned, never which: otherwise audio would depend on timing.
        """
        raise NotImplementedError

    def asks_at(self, progress: Progress) -> int:
        """Return how many items must be available before `next_unit`, which returned None, is called again.

        It is called in any case when the input is complete.
        """
        return progress.available + 1

    def is_done(self, progress: Progress) -> bool:
        """Return whether the utterance, whose input is complete, needs no further unit."""
        return progress.is_final and progress.consumed >= progress.available

    def most_together(self, size: int) -> int:  # noqa: ARG002 - others have other bounds for large ones
        """Return the most units of this size in one call."""
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
    """Chunks of items in, chunks out: a causal codec with state, or a vocoder with look-ahead.

    `sizes` are the items of the first, second, … chunk, the last for all further ones; only the end is shorter.
    """

    is_autoregressive: bool = False
    sizes: Mapping[ChunkProfile, tuple[int, ...]]
    context: int = 0  # items before a chunk that it sees again
    look_ahead: int = 0  # items after a chunk that it must see, unless the utterance ends before
    rows: Sequence[int] = (1,)  # batch sizes; up to the largest that `max_items` allows
    max_items: int = 1  # limit for all units of one call; a single unit may have more

    @property
    def classes(self) -> list[int]:
        """All sizes of chunks, ascending; the end of an utterance counts as the next larger one."""
        return sorted({size for sizes in self.sizes.values() for size in sizes})

    @property
    def calls(self) -> list[tuple[int, int]]:
        """All (batch size, chunk size) that are captured, largest first."""
        made = [(rows, size) for size in self.classes for rows in self.rows if rows <= self.most_together(size)]
        return sorted(made, key=lambda call: -call[0] * call[1])

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next chunk once its input, look-ahead included, is available."""
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
