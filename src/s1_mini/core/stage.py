"""What the scheduler knows of a stage: what it takes and gives, and which unit of work comes next.

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
    shape: tuple[int, ...] = ()  # of one item
    rate: float = 0.0  # items a second of speech; 0 for what is no speech yet, such as a prompt


class Progress(NamedTuple):
    """Where one utterance stands at one stage, in items."""

    available: int  # that the stage before has put out
    is_final: bool  # whether that is all there will be
    consumed: int  # of these, by units that are over
    produced: int  # that this stage has put out
    units: int  # that are over
    max_steps: int  # that the request allows an autoregressive stage
    profile: ChunkProfile
    facts: Mapping[str, int] = MappingProxyType({})  # of the utterance's prompt


class Unit(NamedTuple):
    """A unit of work; an utterance has at most one at a time at a stage."""

    start: int  # first item that it sees of the stage before
    stop: int  # one past the last
    consumes: int  # of these, that no later unit counts as new
    steps: int = 1  # at most; a stop ends it sooner
    prefill: int = 0  # positions to read before the first step
    past: int = 0  # of the stage's own last items, that it sees too
    size: int = 1  # shape class: one call makes steps of units of one size


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """A stage as the scheduler sees it. `next_unit` decides all that differs between stages."""

    name: str
    input: Spec
    output: Spec
    slots: int  # rows of the stage's state
    holds: Literal["utterance", "unit"] = "utterance"  # how long a slot is kept: state is carried over, or is not
    is_autoregressive: bool = True  # all units step together; else the most urgent are chosen for each call
    stops: bool = False  # whether a unit ends by itself; if so, running out of steps cuts the speech off
    is_elsewhere: bool = (
        False  # another process does the work: a thread of its own waits for that, and tells it of ends
    )
    helped_size: int = 0  # first sounds of units up to this size another thread may make, too, at the same time
    items_a_turn: int = 0  # of a thread with several stages, before the next one's turn; one call at the least
    prefill_positions: int = 256  # of all units, that one plan reads
    max_prefills: int = 4  # of one plan: each costs some time of its own, however short
    not_finite: str = "the model's output was not finite"  # what is told when a step's values are no numbers

    def next_unit(self, progress: Progress) -> Unit | None:
        """Give the next unit of work, or None until more is there.

        What is available may decide when it answers, never what: else sound would depend on timing.
        """
        raise NotImplementedError

    def asks_at(self, progress: Progress) -> int:
        """Give the items that must be there before `next_unit`, which has none now, is asked again.

        That spares the bookkeeping of items that change nothing; once all items are there, it is asked anyway.
        """
        return progress.available + 1

    def is_done(self, progress: Progress) -> bool:
        """Tell whether nothing is left to do for the utterance, all of whose items are there."""
        return progress.is_final and progress.consumed >= progress.available

    def most_together(self, size: int) -> int:  # noqa: ARG002 - others have other bounds for large ones
        """Give how many units of this size one call takes."""
        return self.slots


@dataclass(frozen=True, kw_only=True)
class Autoregressive(StagePolicy):
    """One unit: all input is read, then steps are made until the model stops.

    The last `held_back` positions are not prefilled: the first step reads them.
    """

    held_back: int = 0
    stops: bool = True

    def next_unit(self, progress: Progress) -> Unit | None:
        """Give the one unit, as soon as the input is complete."""
        if not progress.is_final or progress.units:
            return None
        length = progress.available
        return Unit(0, length, length, progress.max_steps, prefill=max(0, length - self.held_back))

    def asks_at(self, progress: Progress) -> int:  # noqa: ARG002 - it waits for the end
        """Give a number that is never reached."""
        return NEVER


@dataclass(frozen=True, kw_only=True)
class Chunks(StagePolicy):
    """Items in, items out, chunk by chunk: a causal codec that carries its state, a vocoder that looks ahead.

    `sizes` are the items of the first, second, … chunk, the last for all further ones; only the end is shorter.
    """

    is_autoregressive: bool = False
    sizes: Mapping[ChunkProfile, tuple[int, ...]]
    context: int = 0  # items before a chunk that it sees again
    look_ahead: int = 0  # items after a chunk that it must see, unless the utterance ends before
    rows: Sequence[int] = (1,)  # units of one call: any number up to the largest of these that `max_items` allow
    max_items: int = 1  # of all units of one call, unless it is a single one

    @property
    def classes(self) -> list[int]:
        """All sizes of chunks, ascending; the end of an utterance counts as the next larger one."""
        return sorted({size for sizes in self.sizes.values() for size in sizes})

    @property
    def calls(self) -> list[tuple[int, int]]:
        """All calls that are captured: how many units, and their size; the largest first."""
        made = [(rows, size) for size in self.classes for rows in self.rows if rows <= self.most_together(size)]
        return sorted(made, key=lambda call: -call[0] * call[1])

    def next_unit(self, progress: Progress) -> Unit | None:
        """Give the next chunk, once all that it must see is there."""
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
        """Give where the next chunk and what it looks ahead to end."""
        sizes = self.sizes[progress.profile]
        return progress.consumed + sizes[min(progress.units, len(sizes) - 1)] + self.look_ahead

    def most_together(self, size: int) -> int:
        """Give how many chunks of this size one call takes."""
        return max(rows for rows in self.rows if rows == 1 or rows * size <= self.max_items)
