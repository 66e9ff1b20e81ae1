"""Profile of an utterance: the engine's own scheduler and stages, timed from outside.

One thread runs one section at a time, and the device is idle before and after each, so that the times add up. In a
real engine, stages may run in parallel, and a GPU computes while the host reads its results.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from s1_mini.audio.container import encode
from s1_mini.byte_cache import ByteCache
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Prefill, StepResult
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import Place, Request, Utterance
from s1_mini.core.speech import AudioOutput
from s1_mini.core.stage import StagePolicy
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import CheckpointError
from s1_mini.runtime.ahead import AheadCompiler
from s1_mini.runtime.engine_core import EngineCore, Threads
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.stage import Pending, Stage
from s1_mini.runtime.synthesizer import choose_threads
from s1_mini.text.tidy import tidied
from s1_mini.types import AudioFormat, SamplingParams

SCHEDULING = "scheduling"  # everything in a turn except the stages' work
MAX_CHARACTERS = 20_000

Result = TypeVar("Result")

_numbers = itertools.count()  # request numbers


@dataclass(frozen=True)
class Section:
    """Figures of one section. Latencies are per call; each repetition makes `calls` calls."""

    name: str
    calls: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    total_ms: float  # per repetition
    share: float  # share of all sections


class Timer:
    """Seconds of calls by section, with the device idle before and after each."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.total_s = device, 0.0
        self._seconds: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[[], Result]) -> Result:
        self.rest()
        begun = time.perf_counter()
        result = work()
        self.rest()
        self.add(name, time.perf_counter() - begun)
        return result

    def add(self, name: str, seconds: float) -> None:
        """Add a call that was timed elsewhere."""
        self._seconds.setdefault(name, []).append(seconds)
        self.total_s += seconds

    def forget(self) -> None:
        """Reset after a warm-up."""
        self._seconds.clear()
        self.total_s = 0.0

    def sections(self, repeats: int) -> list[Section]:
        """Return the sections of `repeats` repetitions, in the order of their first calls."""
        found = []
        for name, seconds in self._seconds.items():
            mean, p50, p95 = (1e3 * float(value) for value in (np.mean(seconds), *np.percentile(seconds, (50, 95))))
            total = sum(seconds)
            part = Section(name, len(seconds) / repeats, mean, p50, p95, 1e3 * total / repeats, total / self.total_s)
            found.append(part)
        return found

    def rest(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


class TimedStage(Stage):
    """A stage whose calls are timed; each step blocks until it is done."""

    is_overlapped = False

    def __init__(self, name: str, stage: Stage, timer: Timer) -> None:
        self.device, self._name, self._stage, self._timer = stage.device, name, stage, timer
        for method in ("capture", "begin", "drop", "save", "load", "compilable", "close"):
            setattr(self, method, getattr(stage, method))

    def prefill(self, parts: Sequence[Prefill]) -> None:
        self._timer.time(f"{self._name}: prefill", lambda: self._stage.prefill(parts))

    def step(self, slots: Sequence[int], size: int) -> Pending:
        def work() -> StepResult:
            wait = self._stage.step(slots, size)
            return wait()

        made = self._timer.time(f"{self._name}: step", work)
        return lambda: made


class Profiler:
    """The same text, generated repeatedly by `rows` concurrent requests."""

    def __init__(
        self,
        speaker: LoadedCheckpoint,
        text: str,
        *,
        rows: int = 1,
        max_frames: int = 150,
        audio_format: AudioFormat = "wav",
        config: EngineConfig | None = None,
        timer: Timer | None = None,
    ) -> None:
        """Build the stages and their graphs, and set the threads of this process as the engine does.

        With a `config`, the steps for a CPU are compiled before the first request, if the config enables compilation.

        Raises `RequestError` or `CapacityError` for an unsupported text.
        """
        self.timer, self.frames = timer or Timer(torch.device(speaker.device.value)), 0
        self._text, self._rows, self._format = text, rows, audio_format
        self._voices = [] if speaker.voices.default is None else [speaker.voices.default]
        loaded, self._clones = speaker.loaded, speaker.description.voice.clones
        self._loaded = loaded
        prompt = self._prompt()
        chain = loaded.chain(rows, min(len(prompt.items) + max_frames, loaded.max_positions))
        choose_threads(chain, loaded.num_bytes).enter(0)
        if config is not None:
            AheadCompiler(speaker, chain.stages, config, in_background=False)
        names = [policy.name for policy in chain.policies]
        stages = [TimedStage(*both, self.timer) for both in zip(names, chain.stages, strict=True)]
        self._core, self._rate = unthreaded(chain.policies, stages, rows), chain.sample_rate
        self._max_frames = min(max_frames, chain.room(prompt))

    @torch.inference_mode()
    def speak(self, recording: np.ndarray | None = None) -> list[np.ndarray]:
        """Generate once, and encode a recording [samples] if given; return the audio of each row [samples]."""
        timer, kind = self.timer, self._format
        prompts = timer.time("text to prompt", lambda: [self._prompt() for _ in range(self._rows)])
        if recording is not None:
            timer.time("recording to voice", lambda: self._encode(recording))
        queues = [
            submit(self._core, self._rate, prompt, max_steps=self._max_frames, seed=row)
            for row, prompt in enumerate(prompts)
        ]
        while self._core.ledger:
            begun, inside_s = time.perf_counter(), timer.total_s
            self._core.workers[0].turn()
            timer.add(SCHEDULING, time.perf_counter() - begun - (timer.total_s - inside_s))
        chunks = [list(queue) for queue in queues]
        self.frames = sum(chunk.frames for chunk in chunks[0])
        waves = [np.concatenate([chunk.audio for chunk in row]) for row in chunks]
        timer.time(f"audio to {kind}", lambda: [encode(wave, self._rate, kind) for wave in waves])
        return waves

    def can_encode(self, recording: np.ndarray) -> bool:
        try:
            if self._clones:
                self._encode(recording)
        except CheckpointError:
            return False
        return self._clones

    @torch.inference_mode()
    def _encode(self, recording: np.ndarray) -> None:
        for _ in self._loaded.condition(torch.from_numpy(recording)):
            pass

    def _prompt(self) -> PromptTokens:
        return self._loaded.prompt(tidied(self._text, MAX_CHARACTERS), self._voices)


def measure_sections(
    speaker: LoadedCheckpoint, text: str, *, repeats: int, tell: Callable[[str], None] = lambda _: None, **options: Any
) -> tuple[list[Section], int]:
    """Generate `repeats` times after one warm-up; return the sections, and the frames of the first row.

    `options` are passed to `Profiler`; `tell` is called before the warm-up and each repetition. If the checkpoint can
    encode recordings, each repetition also encodes the audio of the warm-up.
    """
    threads = torch.get_num_threads()
    try:
        tell("warm-up")
        profiler = Profiler(speaker, text, **options)
        recording = profiler.speak()[0]
        encoded = recording if profiler.can_encode(recording) else None
        profiler.timer.forget()
        for number in range(repeats):
            tell(f"repetition {number + 1} of {repeats}")
            profiler.speak(encoded)
        return profiler.timer.sections(repeats), profiler.frames
    finally:
        torch.set_num_threads(threads)


def unthreaded(policies: Sequence[StagePolicy], stages: Sequence[Stage], slots: int) -> EngineCore:
    """Return an engine core whose thread is not started: `workers[0].turn()` runs the next turn."""
    threads = Threads({"engine": range(len(stages))})
    core = EngineCore(policies, stages, WaitingLine(slots), ByteCache(0), threads)
    with torch.inference_mode():
        for stage in stages:
            stage.capture()
    return core


def submit(core: EngineCore, sample_rate: int, prompt: PromptTokens, *, max_steps: int, seed: int) -> OutputQueue:
    """Submit one utterance; return the queue of its audio."""
    queue, now = OutputQueue(lambda: core.scheduler.cancel(request)), time.monotonic()
    speech = AudioOutput(queue, sample_rate=sample_rate, arrived=now, is_streamed=True)
    request = Request(next(_numbers), speech, SamplingParams(), now, deadline=float("inf"))
    core.submit(request)
    core.scheduler.open(request, [Utterance(request, 0, prompt, max_steps, Place(seed, 0))])
    return queue
