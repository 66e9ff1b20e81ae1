"""A request while it is in the engine, the utterances that its text was split into, and where each stands.

Times are seconds of one monotonic clock. All of it belongs to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from s1_mini.core.items import Items
from s1_mini.core.messages import Conditions
from s1_mini.core.prompt import Prompt
from s1_mini.core.speech import Speech
from s1_mini.core.stage import Progress, Spec, Unit
from s1_mini.types import ChunkProfile, FinishReason, SamplingParams

# A later utterance is due that much later than the one before it: sooner than its turn comes in any sound, so that long
# texts do not wait for themselves, and late enough that they do not take all slots from those who come after them.
SPACING_S = 2.0


@dataclass(eq=False)
class Utterance:
    """One sentence piece of a request; it goes through all stages."""

    request: Request
    index: int
    prompt: Prompt
    max_steps: int
    sequences: list[StageSequence] = field(default_factory=list)  # one a stage, once it is begun
    # What the first stage here takes where another process makes it bit by bit; else that is the prompt.
    arriving: Items | None = None
    has_arrived: bool = True  # all of it

    @property
    def due(self) -> float:
        """When it should be begun."""
        return self.request.arrived + (self.index - self.request.utterances[0].index) * SPACING_S

    @property
    def num_given(self) -> int:
        """Items that are there for the first stage."""
        return len(self.prompt.items if self.arriving is None else self.arriving)

    def given(self, start: int, stop: int) -> np.ndarray:
        """Give items start … stop of them, not copied."""
        return self.prompt.items[start:stop] if self.arriving is None else self.arriving.cut(start, stop)

    @property
    def conditions(self) -> Conditions:
        """What its stages are told."""
        request = self.request
        return Conditions(request.sampling, request.seed, self.index, self.max_steps, self.prompt.voice)


class StageSequence:
    """One utterance at one stage."""

    def __init__(self, utterance: Utterance, stage: int, output: Spec) -> None:
        self.utterance, self.request, self.stage = utterance, utterance.request, stage
        self.items = Items(output)  # that it has put out, unless the stage is the last
        self.available = self.consumed = self.produced = self.units = 0
        self.is_final = self.is_done = False
        self.asks_at = 0  # items that must be there before the stage's policy is asked for a unit
        self.slot: int | None = None
        self.next_unit: Unit | None = None  # that can be begun
        self.unit: Unit | None = None  # that is begun
        self.num_read = self.num_launched = self.num_steps = 0  # of the unit: positions, steps, steps reported
        self.has_looked = False  # for its prefix in the cache
        self.last_choice = 0  # the choice that fell upon it last

    @property
    def progress(self) -> Progress:
        """Where it stands."""
        utterance = self.utterance
        return Progress(
            self.available,
            self.is_final,
            self.consumed,
            self.produced,
            self.units,
            utterance.max_steps,
            self.request.profile,
            utterance.prompt.facts,
        )

    def begin(self) -> None:
        """Begin the unit that is next."""
        self.unit, self.next_unit = self.next_unit, None
        self.num_read = self.num_launched = self.num_steps = 0


@dataclass(eq=False)
class Request:
    """One accepted request."""

    number: int  # in the order of arrival
    speech: Speech
    sampling: SamplingParams
    seed: int
    arrived: float
    deadline: float
    profile: ChunkProfile = "balanced"
    utterances: list[Utterance] = field(default_factory=list)
    # Where no voice was asked for, the first utterance's becomes that of the others: what its stages have put out
    # makes their prompts.
    continue_with: Callable[[Sequence[np.ndarray]], list[Utterance]] | None = None
    is_continuing: bool = False  # that is being done
    front: int = 0  # the utterance whose sound is given out now
    was_cut: bool = False  # an utterance ran out of steps before it stopped
    admitted: float | None = None  # when its first utterance got a slot
    begun: float | None = None  # when its first prompt was read
    has_ended: bool = False

    @property
    def finish_reason(self) -> FinishReason:
        """What is told once all is said."""
        return "length" if self.was_cut else "stop"

    @property
    def queue_s(self) -> float | None:
        """Seconds from arrival to the first slot; None if it has come to none."""
        return None if self.admitted is None else self.admitted - self.arrived

    @property
    def prefill_s(self) -> float | None:
        """Seconds from the slot until the first prompt was read; None before."""
        return None if self.begun is None or self.admitted is None else self.begun - self.admitted
