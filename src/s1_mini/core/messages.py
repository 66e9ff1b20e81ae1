"""Messages between the scheduler and the runner of a stage: numbers, and arrays that the scheduler never reads."""

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
    voice: Mapping[str, Any]  # named arrays, as the family defines them
    text_start: int | None = None  # first position of the text, if the scores of the alignment head are wanted


class Begin(NamedTuple):
    """Begin a unit of work in a slot."""

    slot: int
    number: int  # unit number; 0 begins an utterance and discards the slot's old state
    inputs: Any  # items [n, *shape] of the previous stage
    past: Any  # the stage's own last items [m, *shape]
    produced: int  # items that the stage has made before
    steps: int  # at most
    size: int  # its shape class
    context: int  # first inputs, which earlier units have consumed
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
    key: str = ""  # unless empty, the positions up to here are saved under it


class Saved(NamedTuple):
    """The first positions of a sequence, which can be loaded into any slot of the stage."""

    state: Any  # the stage's own
    positions: int
    num_bytes: int


@dataclass
class Plan:
    """The next work of one stage, in this order; plans are carried out in their order."""

    stage: int
    number: int
    is_autoregressive: bool = True
    drops: list[int] = field(default_factory=list)  # slots whose unit is cancelled; of remote stages only
    begins: list[Begin] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # slots, the newest sequence's last
    size: int = 1  # shape class of the steps

    @property
    def is_empty(self) -> bool:
        return not (self.drops or self.begins or self.loads or self.prefills or self.steps)


@dataclass
class StepResult:
    """The output of a step for each of its slots, in their order."""

    values: Any  # [n] arrays [count or more, *shape], or one array
    counts: list[int]  # valid items of each
    stops: list[bool]  # whether the unit is over
    valid: list[bool]  # whether all numbers were finite
    late: Collection[int] = ()  # slots whose step is not made yet; it is planned again
    # Attention scores [text tokens] of the alignment head, by slot; [heads, text tokens] of several heads.
    scores: Mapping[int | None, Any] = field(default_factory=dict)


@dataclass
class Report:
    """The outcome of a plan."""

    result: StepResult | None = None  # result of the plan's steps; None without steps
    errors: dict[int, S1MiniError] = field(default_factory=dict)  # by slot
    skipped: set[int] = field(default_factory=set)  # slots whose step was not made; it is planned again
    saved: dict[str, Saved] = field(default_factory=dict)
    began: float = 0.0  # `time.perf_counter` when the work began
    seconds: float = 0.0  # working time, without the part that overlaps the previous plan
