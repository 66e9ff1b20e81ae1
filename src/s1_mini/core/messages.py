"""Messages between the scheduler and the runner of a stage: numbers, and arrays whose content only stages read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s1_mini.exceptions import S1MiniError
from s1_mini.types import SamplingParams


class Conditions(NamedTuple):
    """Options of a request and an utterance, for every stage."""

    sampling: SamplingParams
    seed: int  # the request's seed; the random numbers depend on it and on `utterance`
    utterance: int  # number in the request
    max_steps: int  # limit for an autoregressive stage
    voice: Mapping[str, Any]  # named arrays, defined by the family
    text_start: int | None = None  # first position of the text, if alignment scores are requested
    text_stop: int | None = None  # position after the text; None: the end of the prompt


class Begin(NamedTuple):
    """Begin a unit of work in a slot."""

    slot: int
    number: int  # unit number; 0 begins an utterance and discards the slot's old state
    inputs: Any  # items [n, *shape] of the previous stage
    past: Any  # the stage's own last items [m, *shape]
    produced: int  # items that the stage has produced before
    steps: int  # maximum
    size: int  # shape class of the unit
    context: int  # number of leading inputs that earlier units have already consumed
    consumes: int  # inputs after the context that this unit consumes; the rest is look-ahead
    conditions: Conditions


class Load(NamedTuple):
    """Load saved positions as the first ones of a slot."""

    slot: int
    saved: Saved


class Prefill(NamedTuple):
    """Prefill positions start … stop of a slot's unit."""

    slot: int
    start: int
    stop: int
    key: str = ""  # unless empty, the key under which the positions up to `stop` are saved


class Saved(NamedTuple):
    """The first positions of a sequence, which can be loaded into any slot of the stage."""

    state: Any  # in the stage's own format
    positions: int
    num_bytes: int


@dataclass
class Plan:
    """The next work of one stage, in the order of the fields; a stage's plans are carried out in order."""

    stage: int
    number: int
    is_autoregressive: bool = True
    drops: list[int] = field(default_factory=list)  # slots whose unit is cancelled; only for remote stages
    begins: list[Begin] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # slots to step; that of the newest sequence is last
    size: int = 1  # shape class of the steps

    @property
    def is_empty(self) -> bool:
        return not (self.drops or self.begins or self.loads or self.prefills or self.steps)


@dataclass
class StepResult:
    """The output of a step for each of its slots, in order."""

    values: Any  # [n] arrays [count or more, *shape], or one array
    counts: list[int]  # valid items of each
    stops: list[bool]  # whether the unit is over
    valid: list[bool]  # whether all numbers were finite
    late: Collection[int] = ()  # slots whose step is not finished yet; it is planned again
    # Attention scores [text tokens] of the alignment head, by slot; [heads, text tokens] of several heads. Those of
    # tokens that the model has not read yet are `UNREAD`.
    scores: Mapping[int | None, Any] = field(default_factory=dict)


@dataclass
class Report:
    """The outcome of a plan."""

    result: StepResult | None = None  # result of the plan's steps; None without steps
    errors: dict[int, S1MiniError] = field(default_factory=dict)  # by slot
    skipped: set[int] = field(default_factory=set)  # slots whose step was not carried out; it is planned again
    saved: dict[str, Saved] = field(default_factory=dict)
    began: float = 0.0  # `time.perf_counter` when the work began
    seconds: float = 0.0  # working time, without the part that overlaps the previous plan
