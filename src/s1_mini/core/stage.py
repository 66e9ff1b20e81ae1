"""The policy of a stage, which the scheduler uses: its input and output, and its next unit of work.

A model family is a chain of stages. An item is one element that a stage passes to the next stage: a token, a frame of
codes, a mel frame, a sample. A unit of work begins in a slot with a window of items. It may begin with a prefill; then
it makes steps. A language model has one long unit per utterance. A model that works in windows has one unit per window.
A codec, like any stage that is not autoregressive, has units of one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from s1_mini.types import ChunkProfile

NEVER = 2**62  # items
MANY_ROWS = 128  # rows of the first stage, besides which small calls take too much of a GPU's time
LONG_WAIT_S = 0.2  # time in the queue, about four frames of a codec language model
# A codec's call has the fixed cost of `Chunks.max_items` / FIXED_COST items. On an H200, a call takes 0.75 ms + 14 us a
# frame with S1-mini's codec, 0.85 ms + 14 us with Qwen3-TTS's: the fixed costs are those of 54 and 60 frames, and
# `max_items` is 400. For other codecs, the same share is assumed.
FIXED_COST = 6


def begins_longer(rows: int, waited_s: float) -> bool:
    """Whether the load, rather than the length of the first chunk, determines when the first audio arrives.

    `rows` is the number of busy slots of the first stage, `waited_s` the time that the utterance was queued.
    """
    return rows > MANY_ROWS or waited_s > LONG_WAIT_S


@dataclass(frozen=True)
class Spec:
    """The type of a stream of items between two stages."""

    dtype: str  # numpy's name
    shape: tuple[int, ...] = ()  # shape of one item
    rate: float = 0.0  # items per second of speech; 0 for items without a rate, such as those of a prompt


class Progress(NamedTuple):
    """The progress of one utterance at one stage, in items."""

    available: int  # number of items from the previous stage
    is_final: bool  # whether these are all
    consumed: int  # number of items that finished units have consumed
    produced: int  # number of items of this stage's output
    units: int  # number of finished units
    max_steps: int  # the request's limit for the steps of an autoregressive stage
    profile: ChunkProfile
    facts: Mapping[str, int] = MappingProxyType({})  # `PromptTokens.facts` of the utterance


class Unit(NamedTuple):
    """A unit of work. At each stage, an utterance has at most one unit at a time."""

    start: int  # first input item
    stop: int  # end of the input items, exclusive
    consumes: int  # number of input items that this unit consumes; later units begin after them
    steps: int = 1  # maximum number of steps; a stop ends the unit sooner
    prefill: int = 0  # number of positions to prefill before the first step
    past: int = 0  # number of last items of the stage's own output that are also input
    size: int = 1  # shape class; only units of the same class can share a call


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """What the scheduler knows about a stage. Each kind of stage has its own `next_unit`."""

    name: str
    input: Spec
    output: Spec
    slots: int  # number of rows of the stage's state
    holds: Literal["utterance", "unit"] = "utterance"  # how long a sequence keeps its slot and state
    is_autoregressive: bool = True  # true: all units step together; false: a call has only the most urgent units
    stops: bool = False  # whether units end by themselves; a unit at its step limit then means that speech was cut
    is_remote: bool = False  # whether the stage runs in another process, which needs `Plan.drops`
    helped_size: int = 0  # the first stage's thread may run this stage's units up to this size, for first audio
    ahead: int = NEVER  # limit of the utterances of one request that are queued or in progress; only of a first stage
    items_a_turn: int = 0  # limit per turn of a thread with several stages; at least one call is made
    prefill_positions: int = 256  # limit of prefilled positions per plan, for all units together
    max_prefills: int = 4  # limit of prefills per plan, because each has a fixed cost
    loaded_profile: ChunkProfile | None = None  # of the last stage: for requests that name none and `begins_longer`
    not_finite: str = "the model's output was not finite"  # error message for NaN and infinity

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next unit of work, or None if more input is needed.

        The amount of available input may decide when a unit is returned, but not which unit, because audio must not
        depend on timing.
        """
        raise NotImplementedError

    def asks_at(self, progress: Progress) -> int:
        """Return the number of available items at which to call `next_unit` again, after it has returned None.

        `next_unit` is also called again when the input is complete.
        """
        return progress.available + 1

    def is_done(self, progress: Progress) -> bool:
        """Return whether the utterance, whose input is complete, needs no further unit."""
        return progress.is_final and progress.consumed >= progress.available

    def most_together(self, size: int) -> int:  # noqa: ARG002 - overridden by stages whose limit depends on it
        """Return the maximum number of units of this size in one call."""
        return self.slots

    def num_taken(self, size: int, ready: int) -> int:
        """Return how many of `ready` units of this size the next call takes."""
        return min(ready, self.most_together(size))


@dataclass(frozen=True, kw_only=True)
class Autoregressive(StagePolicy):
    """The policy of a model with one unit per utterance: prefill the whole input, then step until the model stops.

    The last `held_back` positions are not prefilled, because they are the input of the first step.
    """

    held_back: int = 0
    stops: bool = True

    def next_unit(self, progress: Progress) -> Unit | None:
        if not progress.is_final or progress.units:
            return None
        length = progress.available
        return Unit(0, length, length, progress.max_steps, prefill=max(0, length - self.held_back))

    def asks_at(self, progress: Progress) -> int:  # noqa: ARG002 - the unit needs the complete input
        return NEVER


@dataclass(frozen=True, kw_only=True)
class Chunks(StagePolicy):
    """The policy of a stage that works on chunks of items: a causal codec with state, or a vocoder with look-ahead.

    `sizes` are the numbers of items in the first, second, … chunk of an utterance; the last size repeats. Only an
    utterance's last chunk may be shorter.
    """

    is_autoregressive: bool = False
    sizes: Mapping[ChunkProfile, tuple[int, ...]]
    context: int = 0  # number of items before a chunk that are input again
    look_ahead: int = 0  # number of items after a chunk that are input too, unless the utterance ends first
    rows: Sequence[int] = (1,)  # possible batch sizes
    max_items: int = 1  # limit of items in one call; a call with a single unit may have more

    @property
    def classes(self) -> list[int]:
        """All chunk sizes, ascending. A shorter last chunk is padded to the next larger size."""
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
        """Return the number of items up to the end of the next chunk's look-ahead."""
        sizes = self.sizes[progress.profile]
        return progress.consumed + sizes[min(progress.units, len(sizes) - 1)] + self.look_ahead

    def most_together(self, size: int) -> int:
        return max(rows for rows in self.rows if rows == 1 or rows * size <= self.max_items)

    def num_taken(self, size: int, ready: int) -> int:
        """Return the number that takes the least time per unit, because a call also computes its padding.

        Of 10 chunks of 25 frames, for example, a call takes 8, because 8 rows take 3.5 ms and 16 rows 6.6 ms (S1-mini).
        """
        fixed, most = self.max_items // FIXED_COST, self.most_together(size)
        calls = [rows for rows in self.rows if rows <= most]
        return min(ready, max(calls, key=lambda rows: (min(rows, ready) / (fixed + rows * size), rows)))
