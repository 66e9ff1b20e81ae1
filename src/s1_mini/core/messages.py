"""Messages between the scheduler and the runner of a stage. The scheduler does not interpret arrays in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s1_mini.exceptions import S1MiniError
from s1_mini.types import SamplingParams


class Conditions(NamedTuple):
    """The options of a request and of one of its utterances, passed to every stage."""

    sampling: SamplingParams
    seed: int  # of a part of the request; the random numbers depend on it and on `utterance`
    utterance: int  # the utterance's number in its part
    max_steps: int  # maximum number of steps of an autoregressive stage
    voice: Mapping[str, Any]  # named arrays, defined by the family
    text_start: int | None = None  # position where the text begins; None if no word times are requested
    text_stop: int | None = None  # position after the text; None if the text ends with the prompt


class Begin(NamedTuple):
    """Begin a unit of work in a slot."""

    slot: int
    number: int  # number of the unit; unit 0 begins an utterance and discards the slot's old state
    inputs: Any  # items [n, *shape] of the previous stage
    past: Any  # the last items [m, *shape] of the stage's own output
    produced: int  # number of items that the stage has produced so far
    steps: int  # maximum number of steps
    size: int  # shape class of the unit
    context: int  # number of leading inputs that earlier units have already consumed
    consumes: int  # number of inputs after the context that this unit consumes; the other inputs are look-ahead
    conditions: Conditions


class Load(NamedTuple):
    """Load saved positions into the first positions of a slot."""

    slot: int
    saved: Saved


class Prefill(NamedTuple):
    """Prefill the positions from `start` up to `stop`, exclusive, of a slot's unit."""

    slot: int
    start: int
    stop: int
    key: str = ""  # key under which the positions up to `stop` are saved; empty: they are not saved


class Feed(NamedTuple):
    """Text tokens of a slot's coming steps, which have just been written."""

    slot: int
    start: int  # first step
    tokens: Any  # [n]


class Saved(NamedTuple):
    """The first positions of a sequence, which can be loaded into any slot of the stage."""

    state: Any  # in the stage's own format
    positions: int
    num_bytes: int


@dataclass
class Plan:
    """The next work of one stage, done in the order of the fields.

    The plans of an autoregressive stage are carried out in order; those of another stage may overlap.
    """

    stage: int
    number: int
    is_autoregressive: bool = True
    drops: list[int] = field(default_factory=list)  # slots whose unit is cancelled; only for remote stages
    begins: list[Begin] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # slots to step; the slot of the newest sequence is last
    size: int = 1  # shape class of the steps

    @property
    def is_empty(self) -> bool:
        return not (self.drops or self.begins or self.loads or self.prefills or self.feeds or self.steps)


@dataclass
class StepResult:
    """The output of a step, for each of the plan's slots in order."""

    values: Any  # an array of items [count or more, *shape] for each slot, or all in one array
    counts: list[int]  # number of valid items for each slot
    stops: list[bool]  # whether the slot's unit is over
    valid: list[bool]  # whether all numbers were finite
    late: Collection[int] = ()  # slots whose step is not finished yet and must be planned again
    # By slot: attention scores of the alignment head [text tokens], or of several heads [heads, text tokens]. The score
    # of a token that the model has not read yet is `UNREAD`.
    scores: Mapping[int | None, Any] = field(default_factory=dict)


@dataclass
class Report:
    """The outcome of a plan."""

    result: StepResult | None = None  # result of the plan's steps; None without steps
    errors: dict[int, S1MiniError] = field(default_factory=dict)  # by slot
    skipped: set[int] = field(default_factory=set)  # slots whose step was not carried out and must be planned again
    saved: dict[str, Saved] = field(default_factory=dict)  # by the keys of the plan's prefills
    began: float = 0.0  # `time.perf_counter` when the work began
    seconds: float = 0.0  # working time, without the part that overlaps the previous plan
