"""An accepted request, the utterances that its text was split into, and the progress of each.

Times are seconds of one monotonic clock. All of it belongs to the scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from s1_mini.core.items import Items
from s1_mini.core.messages import Conditions
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.speech import AudioOutput
from s1_mini.core.stage import Progress, Spec, Unit
from s1_mini.types import ChunkProfile, FinishReason, SamplingParams

# Seconds between the due times of successive utterances: less than an utterance lasts, so that long texts do not run
# dry, and enough that they leave slots to later requests.
SPACING_S = 2.0
MAX_QUEUED = 4  # utterances of one request that wait in the queue; the others are built when these have left it


@dataclass(eq=False)
class Utterance:
    """One sentence piece of a request; it goes through all stages."""

    request: Request
    index: int
    prompt: PromptTokens
    max_steps: int
    sequences: list[StageSequence] = field(default_factory=list)  # one a stage, once it is begun
    # What the first stage here takes where another process makes it bit by bit; else that is the prompt.
    arriving: Items | None = None
    has_arrived: bool = True  # all of it

    @property
    def due(self) -> float:
        return self.request.arrived + (self.index - self.request.first) * SPACING_S

    @property
    def num_given(self) -> int:
        """Available input items of the first stage."""
        return len(self.prompt.items if self.arriving is None else self.arriving)

    def given(self, start: int, stop: int) -> np.ndarray:
        """Return input items start … stop of the first stage, not copied."""
        return self.prompt.items[start:stop] if self.arriving is None else self.arriving.cut(start, stop)

    @property
    def conditions(self) -> Conditions:
        request = self.request
        return Conditions(request.sampling, request.seed, self.index, self.max_steps, self.prompt.voice)

    @property
    def pending_s(self) -> float:
        """Seconds of speech that wait for the last stage; 0 if the stage before makes no speech."""
        if len(self.sequences) < 2 or not (rate := self.sequences[-2].output.rate):
            return 0.0
        return (self.sequences[-1].available - self.sequences[-1].consumed) / rate

    def release_prompt(self) -> None:
        """Free the prompt's items: the first stage is done with them."""
        self.prompt = replace(self.prompt, items=self.prompt.items[:0].copy())


class StageSequence:
    """The progress of one utterance at one stage."""

    def __init__(self, utterance: Utterance, stage: int, output: Spec) -> None:
        self.utterance, self.request, self.stage, self.output = utterance, utterance.request, stage, output
        self.items = Items(output)  # that it has put out, unless the stage is the last
        self.available = self.consumed = self.produced = self.units = 0
        self.is_final = self.is_done = False
        self.asks_at = 0  # available items from which the policy is called for a unit
        self.slot: int | None = None
        self.next_unit: Unit | None = None  # that can be begun
        self.unit: Unit | None = None  # that is begun
        self.num_read = self.num_launched = self.num_steps = 0  # of the unit: positions, steps, steps reported
        self.has_looked = False  # up its prefix in the cache
        self.last_choice = 0  # number of the last choice that selected it

    @property
    def progress(self) -> Progress:
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
        self.unit, self.next_unit = self.next_unit, None
        self.num_read = self.num_launched = self.num_steps = 0


@dataclass(eq=False)
class Request:
    """One accepted request."""

    number: int  # in the order of arrival
    speech: AudioOutput
    sampling: SamplingParams
    seed: int
    arrived: float
    deadline: float
    profile: ChunkProfile = "balanced"
    flow: tuple[str, str] = ("", "")  # client and group that take turns in the queue
    utterances: list[Utterance] = field(default_factory=list)  # built and not finished, in order
    later: deque[Callable[[], Utterance]] = field(default_factory=deque)  # builds the utterances that follow
    # Without a voice, the later utterances continue in the one of the first: it is set from what its stages have put
    # out, and they are built only then.
    set_voice: Callable[[Sequence[np.ndarray]], None] | None = None
    is_building: bool = False  # utterances that were taken from `later`
    first: int = 0  # the number of its first utterance
    front: int = 0  # the utterance whose audio is given out now
    was_cut: bool = False  # an utterance ran out of steps before it stopped
    admitted: float | None = None  # when its first utterance got a slot
    begun: float | None = None  # when its first prompt was read
    has_ended: bool = False
    num_finished: int = 0  # items of finished utterances
    allowed_s: float = field(init=False)  # from arrival to the deadline

    def __post_init__(self) -> None:
        self.allowed_s = self.deadline - self.arrived

    @property
    def has_more(self) -> bool:
        return bool(self.utterances or self.later or self.is_building)

    @property
    def is_paused(self) -> bool:
        """Whether no further utterance is begun because the consumer of the stream is behind.

        That begins with a full window of unread audio, and ends when that and what waits for the last stage fit it.
        """
        speech, queue = self.speech, self.speech.queue
        if speech.is_full:
            queue.reports_takes = True
        elif queue.reports_takes:
            pending_s = sum(utterance.pending_s for utterance in self.utterances)
            queue.reports_takes = speech.unread_s + pending_s > speech.window_s
        return queue.reports_takes

    def take_later(self, count: int) -> list[Callable[[], Utterance]]:
        """Remove and return the builders of up to `count` next utterances.

        The caller runs these without the scheduler's lock; meanwhile nothing more is returned.
        """
        if self.is_building or self.set_voice is not None:
            return []
        builds = [self.later.popleft() for _ in range(min(count, len(self.later)))]
        self.is_building = bool(builds)
        return builds

    @property
    def finish_reason(self) -> FinishReason:
        return "length" if self.was_cut else "stop"

    @property
    def queue_s(self) -> float | None:
        """Seconds from arrival to the first slot; None before."""
        return None if self.admitted is None else self.admitted - self.arrived

    @property
    def prefill_s(self) -> float | None:
        """Seconds from the first slot until the first prompt was prefilled; None before."""
        return None if self.begun is None or self.admitted is None else self.begun - self.admitted
