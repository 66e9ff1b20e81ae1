"""What the scheduler and a stage's runner tell each other: numbers, and arrays that the scheduler never opens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s1_mini.exceptions import S1MiniError
from s1_mini.types import SamplingParams


class Conditions(NamedTuple):
    """What a request asks of every stage."""

    sampling: SamplingParams
    seed: int  # of the request; with `utterance` it names the random numbers
    utterance: int  # its number in the request
    max_steps: int  # that an autoregressive stage may make for it
    voice: Mapping[str, Any]  # named arrays, as the family defines them


class Begin(NamedTuple):
    """A slot begins a unit of work."""

    slot: int
    number: int  # of the unit: with 0 the utterance begins, and what the slot carried is void
    inputs: Any  # items [n, *shape] of the stage before that it sees
    past: Any  # the stage's own last items [m, *shape] that it sees
    produced: int  # items that the stage put out before
    steps: int  # at most
    size: int  # its shape class
    context: int  # of the inputs, how many at the beginning earlier units have consumed
    consumes: int  # of the inputs, how many behind the context it is to consume; what follows is look-ahead
    conditions: Conditions


class Load(NamedTuple):
    """A slot's first positions are put in from what was saved."""

    slot: int
    saved: Saved


class Prefill(NamedTuple):
    """Positions start … stop of a slot's unit are read."""

    slot: int
    start: int
    stop: int
    key: str = ""  # if there is one, what the slot then holds is saved under it, to be loaded into others


class Saved(NamedTuple):
    """The first positions of a sequence, ready to be put into any slot of the stage."""

    state: Any  # the stage's own
    positions: int
    num_bytes: int


@dataclass
class Plan:
    """What one stage does next, in this order; the plans of a stage are carried out in the order they are made."""

    stage: int
    number: int
    is_autoregressive: bool = True
    drops: list[int] = field(default_factory=list)  # slots whose unit is given up; only a stage elsewhere is told
    begins: list[Begin] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # slots, the newest sequence's last
    size: int = 1  # shape class of the steps

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.drops or self.begins or self.loads or self.prefills or self.steps)


@dataclass
class StepResult:
    """What a step made of each of its slots, in their order; only the first `counts` items of each mean anything."""

    values: Any  # [n] arrays [count or more, *shape], or one array
    counts: list[int]
    stops: list[bool]  # whether the unit is over
    valid: list[bool]  # whether all numbers were finite
    late: Collection[int] = ()  # slots whose step is not made yet, and is to be asked for again


@dataclass
class Report:
    """What became of a plan."""

    result: StepResult | None = None  # of the plan's steps; None if there were none
    errors: dict[int, S1MiniError] = field(default_factory=dict)  # by slot
    skipped: set[int] = field(default_factory=set)  # slots whose step was not made, and is to be made again
    saved: dict[str, Saved] = field(default_factory=dict)
    began: float = 0.0  # when its work did, by `time.perf_counter`
    seconds: float = 0.0  # from there to the end of its steps, or of its reads if it has none; not those of the last
