"""A loaded checkpoint with its memory, queue and threads; it takes the pieces of a text and returns an audio queue."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from s1_mini.alignment.words import Aligner
from s1_mini.byte_cache import ByteCache
from s1_mini.config import EngineConfig
from s1_mini.core.items import Items
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import MAX_QUEUED, Later, Place, Request, Source, Utterance
from s1_mini.core.scheduler import NONE
from s1_mini.core.speech import AudioOutput
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import CapacityError, GenerationError, ParameterError
from s1_mini.families.base import PLAIN, PromptOptions, StageChain, TextStreamModel
from s1_mini.metrics import EngineMetrics, MetricFamily
from s1_mini.runtime.ahead import AheadCompiler
from s1_mini.runtime.arriving import ArrivingUtterance, check_rest
from s1_mini.runtime.engine_core import EngineCore, Threads
from s1_mini.runtime.graphs import references_stream
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.process import num_cores
from s1_mini.runtime.sizing import measure_slots
from s1_mini.runtime.tasks import Steps
from s1_mini.text.arriving import ArrivingText
from s1_mini.text_stream import TextStream
from s1_mini.types import SamplingParams, TTSRequest, Voice
from s1_mini.voices.format import Tensors, VoiceFormat
from s1_mini.voices.reference import Check
from s1_mini.voices.reference_cache import ReferenceCache, ReferenceStore

REFERENCE_BYTES = 64_000_000  # memory for encoded references, enough for several hours of audio
CACHE_FAMILIES: tuple[tuple[str, Literal["counter", "gauge"], str], ...] = (
    ("entries", "gauge", "Entries in the cache"),
    ("num_bytes", "gauge", "Size of the cache in bytes"),
    ("hits", "counter", "Cache hits"),
    ("misses", "counter", "Cache misses"),
    ("evictions", "counter", "Entries evicted to make room"),
)
WARM_UP_SEEDS = range(4)
WARM_UP_TEXT = "Ready."
NO_ITEMS = np.zeros(0, np.int64)
NO_OPTIONS = TTSRequest("")

# For models with fewer bytes of weights, torch uses one CPU thread per call, because synchronizing a second thread
# costs more time than it saves (an early built-in voice, torch, 2026-11: 26 ms per frame on two threads, 17 on one).
ONE_THREAD_BYTES = 200e6
# The same limit on two cores. It is higher, so that SpeechT5 is below the limit: its steps of one row are limited by
# memory, and the codec needs the other core.
TWO_CORES_BYTES = 250e6
NUM_THREADS = torch.get_num_threads()  # torch's default, read before an engine changes the number of threads


class SpokenPart(NamedTuple):
    """A part of a request's text: the prompts of its utterances, and what they have in common."""

    pieces: Sequence[str]
    voices: Sequence[Voice]
    seed: int
    pauses: Sequence[float | None] = ()  # those of `Joiner`, one for each piece, and one for the end


class Backend(NamedTuple):
    """The running stages of a checkpoint."""

    core: EngineCore
    chain: StageChain
    slots: int
    positions: int  # maximum length of an utterance
    source: Source | None = None  # other processes with all stages of the chain


def open_here(speaker: LoadedCheckpoint, config: EngineConfig) -> Backend:
    """Return a backend with all stages in this process. Raises `ConfigurationError` if there is too little memory."""
    slots, positions, prefix_bytes = measure_slots(speaker, config)
    chain = speaker.loaded.chain(slots, positions)
    return Backend(make_core(chain, speaker, config, prefix_bytes), chain, chain.policies[0].slots, positions)


def make_core(
    chain: StageChain,
    speaker: LoadedCheckpoint,
    config: EngineConfig,
    prefix_bytes: int,
    threads: Threads | None = None,
) -> EngineCore:
    return EngineCore(
        chain.policies,
        chain.stages,
        WaitingLine(config.max_queue_size, batch_timeout_ms=config.batch_timeout_ms, grouping=config.batch_grouping),
        ByteCache(prefix_bytes, config.kv_cache_size),
        threads or choose_threads(chain, speaker.loaded.num_bytes),
        clears_memory=config.vram_clear_on_oom,
        stuck_after_s=config.stuck_after_s,
    )


def open_references(form: VoiceFormat, config: EngineConfig) -> ReferenceCache:
    path, max_bytes = config.reference_cache_path, round(config.reference_cache_disk_mb * 1e6)
    store = None if path is None else ReferenceStore(path, form, max_bytes)
    return ReferenceCache(max_bytes=REFERENCE_BYTES, max_entries=config.reference_cache_size, store=store)


def seed_of(sampling: SamplingParams) -> int:
    """Return the seed of a request, or a random one."""
    return secrets.randbits(63) if sampling.seed is None else sampling.seed


class Synthesizer:
    """Generates audio with one loaded checkpoint. Thread-safe."""

    def __init__(
        self,
        speaker: LoadedCheckpoint,
        config: EngineConfig,
        metrics: EngineMetrics | None = None,
        *,
        open_backend: Callable[[LoadedCheckpoint, EngineConfig], Backend] = open_here,
    ) -> None:
        self._speaker, self._loaded = speaker, speaker.loaded
        self.core, self._chain, self.num_slots, self.positions, self._source = open_backend(speaker, config)
        self._max_text_length = config.max_text_length
        self.references = open_references(speaker.description.voice, config)
        self._numbers = itertools.count()
        self._ahead = AheadCompiler(speaker, self._chain.stages, config)
        self.core.start()
        with ExitStack() as cleanup:
            cleanup.callback(self.core.stop, drains=False)
            cleanup.callback(self._ahead.close)
            self._warm_up()
            cleanup.pop_all()
        self.core.ledger.metrics = metrics or EngineMetrics()  # the warm-up is not counted
        self.core.line.forget()
        self.references.start()
        self.core.watch()  # after the warm-up, which may compile for longer than the watchdog's timeout

    def close(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        self._ahead.close()
        self.references.close()
        self.core.stop(drains=drains, timeout_s=timeout_s)

    def encode(self, wave: Tensor, check: Check | None = None) -> Tensors:
        """Encode one reference wave [samples] to the tensors of a voice. The first call loads the encoder.

        Raises the errors of `EngineCore.do` and, from the encoder, `CapacityError` or `CheckpointError`;
        `CancelledError` if `check` is cancelled.
        """

        def condition() -> Steps[Tensors]:
            tensors = yield from self._loaded.condition(wave)
            # Copied in the thread that has computed them, because it has a stream of its own on a GPU.
            return {name: tensor.cpu() for name, tensor in tensors.items()}

        encoding = self.core.do(condition)
        if check is not None:
            check.cancels(encoding)
        return encoding.result()

    def accept(
        self,
        request: TTSRequest,
        sampling: SamplingParams,
        *,
        deadline: float = float("inf"),
        streams: bool = True,
    ) -> Request:
        """Accept a request; `begin`, `begin_stream` or `Scheduler.refuse` must follow.

        `deadline` is a time of `time.monotonic`. Never waits. The queue of its audio may raise `EngineError`, such as
        `GenerationError` or `RequestTimeoutError`.
        """
        arrived = time.monotonic()
        queue = OutputQueue(lambda: self.core.scheduler.cancel(accepted), whole=not streams)
        accepted = Request(
            next(self._numbers),
            AudioOutput(queue, sample_rate=self._chain.sample_rate, arrived=arrived, is_streamed=streams),
            sampling,
            arrived,
            deadline,
            profile=request.chunk_profile or "balanced",
            adapts=request.adapts_chunks,
            flow=request.flow,
            word_times=request.word_times,
            on_end=request.on_end,
        )
        self.core.submit(accepted)
        return accepted

    def begin(self, request: Request, parts: Sequence[SpokenPart], options: PromptOptions = PLAIN) -> None:
        """Queue the text of an accepted request; the last chunk of its audio has the finish reason.

        The prompts of later utterances are built shortly before their turn; the first utterance without a voice makes
        the voice of the later ones. Raises `RequestError` or `CapacityError` for a prompt that cannot be built, and the
        errors of `Scheduler.open`.
        """
        own: list[Voice] = []
        num_own = sum(len(part.pieces) for part in parts if not part.voices) if len(self._chain.stages) > 1 else 0
        checks: list[tuple[str, partial[Utterance]]] = []  # the text and the prompt of each utterance with a voice
        for at, part in enumerate(parts):
            voices = part.voices or own
            for number, text in enumerate(part.pieces):
                ends_part = number + 1 == len(part.pieces) and at + 1 < len(parts)
                place = Place(part.seed, number, ends_part=ends_part)
                prompt = partial(self._loaded.prompt, text, voices, options)
                build = partial(self._utterance, request, len(request.later), prompt, place)
                makes_voice = voices is own and num_own > 1
                if makes_voice:
                    num_own = 0
                    request.later.append(Later(partial(self._with_own_voice, build, own, text), makes_voice=True))
                else:
                    request.later.append(Later(build))
                    checks.append((text, build))
        request.speech.begin([part.pauses for part in parts])
        utterances = [later.build() for later in request.take_later(MAX_QUEUED)]
        request.is_building = False
        if not request.awaits_voice and (later := checks[len(utterances) :]):
            max(later, key=lambda each: len(each[0]))[1]()  # a text that is too long fails before generation
        self.core.scheduler.open(request, utterances)

    def begin_stream(
        self,
        request: Request,
        stream: TextStream,
        voices: Sequence[Voice],
        options: PromptOptions,
        *,
        seed: int,
        read: Callable[[str], str] | None,
    ) -> None:
        """Begin an accepted request whose only utterance gets its prompt when enough of its text has been written.

        `read` normalizes a sentence; None: the text stays as it is. The queue may raise `RequestError` for the text.
        """
        if self._source is not None:
            raise ParameterError(
                "text", "is a TextStream, which is not supported while stages run in other processes; give a str"
            )
        text = ArrivingText(self._max_text_length, keeps_paragraphs=not self._speaker.description.splits, read=read)
        sink = ArrivingUtterance(
            Utterance(request, 0, PromptTokens(NO_ITEMS), 1, Place(seed, 0), is_open=True),
            text,
            self.core.scheduler,
            cast("TextStreamModel", self._loaded),
            voices=voices,
            options=options,
            room=self._room,
        )
        stream.attach(sink.take)
        request.speech.queue.accept()

    def speak(
        self,
        pieces: Sequence[str],
        voices: Sequence[Voice],
        sampling: SamplingParams,
        request: TTSRequest = NO_OPTIONS,
        **options: Any,
    ) -> OutputQueue:
        """Queue a request of one part; `request` and `options` are those of `accept`. Raises the errors of `begin`."""
        accepted = self.accept(request, sampling, **options)
        try:
            self.begin(accepted, [SpokenPart(pieces, voices, seed_of(sampling))])
        except BaseException as error:
            self.core.scheduler.refuse(accepted, error)
            raise
        return accepted.speech.queue

    def prompt(self, voice: Voice) -> PromptTokens:
        """Return a prompt that begins with `voice`. The prompt contains the length and the key of that prefix.

        Raises `VoiceError` if the voice does not fit the model, and `CapacityError` if it leaves no room for text.
        """
        prompt = self._loaded.prompt(WARM_UP_TEXT, [voice])
        if len(prompt.items) >= self.positions:
            raise CapacityError(
                f"the voice takes {prompt.num_shared} of the {self.positions} positions of a slot, which leaves too "
                "few for text; use a shorter reference"
            )
        return prompt

    @property
    def aligner(self) -> Aligner | None:
        return self._chain.aligner

    @property
    def _num_taken(self) -> int:
        """Number of taken slots; if stages have several replicas, it may exceed `num_slots`."""
        return self.core.slots.count - self.core.slots.num_free

    def describe(self) -> dict[str, Any]:
        core, num_free = self.core, max(0, self.num_slots - self._num_taken)
        return {
            "queue": asdict(core.line.stats) | {"max_size": core.line.max_size},
            "slots": {"free": num_free, "total": self.num_slots, "columns": self.positions},
            "requests": len(core.ledger),
            "prefix_cache": asdict(core.prefixes.stats),
            "reference_cache": asdict(self.references.stats),
        }

    def families(self) -> Iterator[MetricFamily]:
        queue, num_taken = self.core.line.stats, self._num_taken
        yield MetricFamily("queue_waiting", "gauge", "Requests waiting for a slot", queue.waiting)
        yield MetricFamily(
            "queue_refused_total", "counter", "Requests rejected because the queue was full", queue.refused
        )
        slots: dict[str, float] = {"taken": num_taken, "free": max(0, self.num_slots - num_taken)}
        yield MetricFamily("slots", "gauge", "Slots", slots, "state")
        stats = {"prefix": self.core.prefixes.stats, "reference": self.references.stats}
        for name, kind, description in CACHE_FAMILIES:
            figures = {cache: float(getattr(values, name)) for cache, values in stats.items()}
            suffix = "_total" if kind == "counter" else ""
            yield MetricFamily(f"cache_{name.removeprefix('num_')}{suffix}", kind, description, figures, "cache")

    def _utterance(
        self, request: Request, index: int, make_prompt: Callable[[], PromptTokens], place: Place
    ) -> Utterance:
        prompt = make_prompt()
        room = self._room(prompt)
        check_rest(prompt.num_after, room)
        utterance = Utterance(request, index, prompt, min(request.sampling.max_new_tokens, room), place)
        if self._source is not None:
            utterance.source, utterance.has_arrived = self._source, False
            utterance.arriving = Items(self.core.scheduler.stages[0].policy.input)
        return utterance

    def _with_own_voice(self, build: Callable[[], Utterance], own: list[Voice], text: str) -> Utterance:
        """Build an utterance whose output becomes the voice `own` of later ones."""
        utterance = build()
        utterance.set_voice = lambda items: own.append(self._loaded.own_voice(items, text))
        return utterance

    def _room(self, prompt: PromptTokens) -> int:
        """Return the steps that fit after a prompt. Raises `CapacityError` if none does."""
        room = self._chain.room(prompt)
        if room < 1:
            raise CapacityError(
                f"{prompt.excess(f'a slot has {self.positions} for the prompt and the speech')}, or give the engine "
                "more memory or larger slots (S1_MINI_KV_CACHE_GB, S1_MINI_MAX_COLUMNS)."
            )
        return room

    def _warm_up(self) -> None:
        """Generate a short text, so that the first request need not compile anything; retry if it gives no audio."""
        for seed in WARM_UP_SEEDS:
            sampling = replace(self._speaker.description.defaults, max_new_tokens=2, seed=seed)
            try:
                list(self.speak([WARM_UP_TEXT], (), sampling))
            except GenerationError:
                if seed == WARM_UP_SEEDS[-1]:
                    raise
            else:
                return


def choose_threads(chain: StageChain, num_bytes: int) -> Threads:
    """Return the threads for the stages of a chain: a single thread, or several if that increases the throughput.

    On a CPU with a small model, the model's steps and the codec have a thread, and thereby a core, each. On a GPU, one
    thread waits for a frame while another thread delivers audio, and a third one encodes references. Models on other
    devices, long calls of middle stages, and remote stages have threads of their own.
    """
    devices = [stage.device for stage in chain.stages]
    last = len(devices) - 1
    most = TWO_CORES_BYTES if num_cores() == 2 else ONE_THREAD_BYTES
    steps_on_one = all(device.type == "cpu" for device in devices) and num_bytes < most

    def enter(stage: int) -> None:
        torch.set_num_threads(1 if steps_on_one else NUM_THREADS)
        device = devices[0 if stage == NONE else stage]  # references are encoded on the first stage's device
        if device.type == "cuda":
            torch.cuda.set_device(device)
            if stage == NONE:
                torch.cuda.set_stream(references_stream(device))

    several = any(device.type == "cuda" for device in devices) or any(policy.is_remote for policy in chain.policies)
    if last and ((steps_on_one and num_cores() > 1) or several):
        groups: dict[str, tuple[int, ...]] = {}
        for stage, (device, policy) in enumerate(zip(devices[:-1], chain.policies, strict=False)):
            name = "model" if device == devices[0] else f"model on {device}"
            if not policy.is_autoregressive or policy.is_remote:
                name = policy.name  # a thread of its own, because long calls would delay the steps of other stages
            groups[name] = (*groups.get(name, ()), stage)
        helps = chain.policies[-1].helped_size > 0 and devices[0] == devices[last]
        encodes: dict[str, tuple[int, ...]] = {"references": ()} if devices[0].type == "cuda" else {}
        return Threads({**groups, "codec": (last,), **encodes}, helps=helps, enter=enter)
    return Threads({"engine": tuple(range(last + 1))}, enter=enter)
