"""An accepted request, the utterances that its text was split into, and the progress of each utterance.

All times are in seconds, from the same monotonic clock. Once a request is submitted, only the scheduler changes these
objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from s1_mini.core.items import Items
from s1_mini.core.messages import Conditions
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.speech import AudioOutput
from s1_mini.core.stage import Progress, Spec, Unit
from s1_mini.types import ChunkProfile, FinishReason, Phases, SamplingParams, Timing

# Seconds between the due times of a request's successive utterances: less than an utterance lasts, so that long texts
# do not run out of audio, but enough to leave slots to later requests.
SPACING_S = 2.0
MAX_QUEUED = 4  # queued utterances per request; further utterances are built when these leave the queue


@dataclass(frozen=True)
class Place:
    """The place of an utterance in a part of the request's text, which has a seed and audio effects of its own."""

    seed: int
    number: int  # of the utterance in its part
    ends_part: bool = False  # whether it is the last one of a part that another part follows


class Source(Protocol):
    """Other processes that generate the input of the first stage. Called with the scheduler's lock held."""

    def fetch(self, utterance: Utterance) -> None:
        """Request the input of an utterance, which goes to `Scheduler.arrive`."""

    def forget(self, utterance: Utterance) -> None:
        """Cancel an utterance; does nothing if it has not begun or has ended."""


@dataclass(eq=False)
class Utterance:
    """A part of a request's text that is generated as a unit and passes through all stages."""

    request: Request
    index: int
    prompt: PromptTokens
    max_steps: int
    place: Place
    sequences: list[StageSequence] = field(default_factory=list)  # one for each stage that has begun
    # The input of the first stage, if another process produces it step by step; None: the input is the prompt.
    arriving: Items | None = None
    has_arrived: bool = True  # whether the input is complete
    source: Source | None = None  # gets the input once the utterance has a slot; None: it comes by itself
    # For the first of several utterances without a voice: makes its output the voice of the later ones, which are built
    # only after that.
    set_voice: Callable[[Sequence[np.ndarray]], None] | None = None
    was_cut: bool = False  # whether the utterance reached its step limit before its end
    # A text that is still being written: step n needs its token n, and waits for it.
    is_open: bool = False  # whether more of the text may come
    num_texts: int = 0  # text tokens so far, except those in `prompt.items`
    new_texts: list[np.ndarray] = field(default_factory=list)  # tokens that the first stage has not received
    waited_s: float = 0.0  # for more text while other requests waited for a slot, less the speech since then

    @property
    def due(self) -> float:
        return self.request.arrived + (self.index - self.request.first) * SPACING_S

    @property
    def num_given(self) -> int:
        """Number of input items that the first stage has received."""
        return len(self.prompt.items if self.arriving is None else self.arriving)

    def given(self, start: int, stop: int) -> np.ndarray:
        """Return input items of the first stage, from `start` up to `stop`, exclusive, without copying."""
        return self.prompt.items[start:stop] if self.arriving is None else self.arriving.cut(start, stop)

    def take_texts(self) -> tuple[int, np.ndarray]:
        """Return the step of the first token that the first stage has not received, and all such tokens [n]."""
        tokens = np.concatenate(self.new_texts)
        self.new_texts.clear()
        return self.num_texts - len(tokens), tokens

    @property
    def conditions(self) -> Conditions:
        request = self.request
        text = (self.prompt.text or (self.prompt.num_shared, None)) if request.word_times else (None, None)
        place = self.place
        return Conditions(request.sampling, place.seed, place.number, self.max_steps, self.prompt.voice, *text)

    @property
    def pending_s(self) -> float:
        """Seconds of audio in items that wait for the last stage; 0 if these items have no rate."""
        if len(self.sequences) < 2 or not (rate := self.sequences[-2].output.rate):
            return 0.0
        return (self.sequences[-1].available - self.sequences[-1].consumed) / rate

    def begin(self, outputs: Sequence[Spec]) -> None:
        """Create the sequences of all stages, given the stages' outputs."""
        before = None
        for stage, output in enumerate(outputs):
            before = StageSequence(self, stage, output, before)
            self.sequences.append(before)

    def release_prompt(self) -> None:
        """Free the memory of the prompt's items, once the first stage needs them no longer."""
        self.prompt = replace(self.prompt, items=self.prompt.items[:0].copy())


class Later(NamedTuple):
    """An utterance that is not built yet."""

    build: Callable[[], Utterance]
    makes_voice: bool = False  # whether its output is the voice of the utterances after it


class StageSequence:
    """The progress of one utterance at one stage."""

    def __init__(self, utterance: Utterance, stage: int, output: Spec, before: StageSequence | None = None) -> None:
        """`before` is the sequence of the same utterance at the previous stage."""
        self.utterance, self.request, self.stage, self.output = utterance, utterance.request, stage, output
        self.before = before
        self.items = Items(output)  # the stage's output so far; not kept for the last stage
        self.scores: Items | None = None  # attention scores of each output item, if word times are requested
        self.available = self.consumed = self.produced = self.units = 0
        self.is_final = self.is_done = False
        self.asks_at = 0  # number of available items at which to call the policy's `next_unit` again
        self.slot: int | None = None
        self.next_unit: Unit | None = None  # the unit that is ready to begin
        self.unit: Unit | None = None  # the unit in progress
        # Counts for the unit in progress: prefilled positions, launched steps, reported steps.
        self.num_prefilled = self.num_launched = self.num_steps = 0
        self.has_looked = False  # whether the prefix cache was searched
        self.last_choice = 0  # serial number of the stage queue's most recent choice that included this sequence

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

    @property
    def can_step(self) -> bool:
        """Whether a further step of the current unit may be launched."""
        return self.unit is not None and self.num_launched < self.unit.steps and not self.waits_for_text

    @property
    def waits_for_text(self) -> bool:
        """Whether the next step needs text that has not arrived."""
        return self.utterance.is_open and self.stage == 0 and self.num_launched >= self.utterance.num_texts

    def add_scores(self, scores: np.ndarray, count: int) -> None:
        """Store attention scores [text tokens] for each of the next `count` output items, all from the same step."""
        if self.scores is None:
            self.scores = Items(Spec(scores.dtype.name, scores.shape))
        self.scores.extend(np.repeat(scores[None], count, axis=0))

    def begin(self) -> None:
        self.unit, self.next_unit = self.next_unit, None
        self.num_prefilled = self.num_launched = self.num_steps = 0


@dataclass(eq=False)
class Request:
    """One accepted request."""

    number: int  # ascending in the order of arrival
    speech: AudioOutput
    sampling: SamplingParams
    arrived: float
    deadline: float
    profile: ChunkProfile = "balanced"
    adapts: bool = False  # whether `profile` is a default, which `StagePolicy.loaded_profile` may replace
    flow: tuple[str, str] = ("", "")  # the client and the group, for fair turns in the queue
    word_times: bool = False
    on_end: Callable[[Phases], None] | None = None
    utterances: list[Utterance] = field(default_factory=list)  # utterances that are built but not finished, in order
    later: deque[Later] = field(default_factory=deque)  # the other utterances
    awaits_voice: bool = False  # whether the last utterance that was built makes the voice of those in `later`
    is_building: bool = False  # whether functions from `later` are running
    first: int = 0  # number of the first utterance
    front: int = 0  # number of the utterance whose audio is being output
    was_cut: bool = False  # whether an utterance reached its step limit before its end
    encoding: float | None = None  # time when its recordings were queued to be encoded; None if all were known
    queued: float | None = None  # time when its utterances were queued, which is then also `arrived`
    admitted: float | None = None  # time when the first utterance got a slot
    begun: float | None = None  # time when the first prompt was prefilled
    slot: int | None = None  # slot of the first prompt
    has_ended: bool = False
    num_finished: int = 0  # number of items of finished utterances
    accepted: float = field(init=False)  # time when it was accepted
    allowed_s: float = field(init=False)  # seconds from arrival to the deadline

    def __post_init__(self) -> None:
        self.accepted, self.allowed_s = self.arrived, self.deadline - self.arrived

    @property
    def has_more(self) -> bool:
        return bool(self.utterances or self.later or self.is_building)

    def update_pause(self) -> bool:
        """Update, and return, whether no further utterance is begun because the consumer of a stream reads too slowly.

        A pause begins when the unread audio exceeds the stream's window. It ends when the unread audio and the audio
        that is still to be decoded fit into the window together.
        """
        speech, queue = self.speech, self.speech.queue
        if speech.is_full:
            queue.is_paused = True
        elif queue.is_paused:
            pending_s = sum(utterance.pending_s for utterance in self.utterances)
            queue.is_paused = speech.unread_s + pending_s > speech.window_s
        return queue.is_paused

    def take_later(self, count: int) -> list[Later]:
        """Remove from `later`, and return, up to `count` next utterances, which are not built.

        The caller builds them without the scheduler's lock. Until they are built, further calls return nothing.
        """
        builds: list[Later] = []
        while not (self.is_building or self.awaits_voice) and self.later and len(builds) < count:
            builds.append(self.later.popleft())
            self.awaits_voice = builds[-1].makes_voice
        self.is_building |= bool(builds)
        return builds

    def release(self) -> None:
        """Drop the references of an ended request to itself, so that it is freed without the garbage collector."""
        for utterance in self.utterances:
            utterance.sequences = []
            utterance.set_voice = None
        self.utterances, self.later = [], deque()

    @property
    def finish_reason(self) -> FinishReason:
        return "length" if self.was_cut else "stop"

    @property
    def timing(self) -> Timing:
        """The latency of the phases so far, without that of the first audio."""
        if self.admitted is None:
            return Timing()
        return Timing(self.admitted - self.arrived, None if self.begun is None else self.begun - self.admitted)

    def phases(self, reason: str, now: float, num_items: int) -> Phases:
        """Return the phases of the request, which ends now."""
        speech, prefill, generation = self.speech, self.admitted, self.begun
        if generation is None and speech.first_sent is not None:  # another process has prefilled the prompt
            prefill, generation = None, self.admitted
        times = {"text": self.accepted, "reference": self.encoding, "queue": self.queued}
        times |= {"prefill": prefill, "generation": generation}
        begins = {name: time for name, time in times.items() if time is not None}
        return Phases(begins, speech.first_sent, now, reason, self.slot, num_items, speech.sent_s)
