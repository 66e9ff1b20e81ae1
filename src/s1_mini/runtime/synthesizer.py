"""What speaks: one loaded checkpoint, its memory, its waiting line and its threads, put together.

From here upward nobody knows of slots or plans: pieces of text go in, a queue of sound comes out.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from s1_mini.byte_cache import ByteCache
from s1_mini.config import EngineConfig
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import Prompt
from s1_mini.core.request import MAX_QUEUED, Request, Utterance
from s1_mini.core.speech import AudioOutput
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import CapacityError, GenerationError, QueueFullError
from s1_mini.families.base import Chain
from s1_mini.metrics import EngineMetrics, Family
from s1_mini.runtime.ahead import AheadCompiler
from s1_mini.runtime.engine_core import Core, EngineCore, Threads
from s1_mini.runtime.loader import LoadedCheckpoint, measure_slots
from s1_mini.runtime.process import num_cores
from s1_mini.types import ChunkProfile, SamplingParams, Voice
from s1_mini.voices.format import Tensors, VoiceFormat
from s1_mini.voices.reference import Check
from s1_mini.voices.reference_cache import ReferenceCache, ReferenceStore

REFERENCE_BYTES = 64_000_000  # in memory: some hours of references
CACHE_FAMILIES: tuple[tuple[str, Literal["counter", "gauge"], str], ...] = (
    ("entries", "gauge", "Entries of a cache"),
    ("num_bytes", "gauge", "Bytes that a cache holds"),
    ("hits", "counter", "Lookups that found something"),
    ("misses", "counter", "Lookups that found nothing"),
    ("evictions", "counter", "Entries let go for others"),
)
WARM_UPS = [SamplingParams(max_new_tokens=2, seed=seed) for seed in range(4)]
ONE_STEP = SamplingParams(max_new_tokens=1, seed=0)
WARM_UP_TEXT = "Ready."

# A model smaller than this steps on one CPU thread: its kernels are so small that a second thread is waited for longer
# than it helps (26 ms a frame on two, 17 on one, with the voice that ships; 2026-11).
ONE_THREAD_BYTES = 200e6
# On two cores likewise up to SpeechT5: a step of one row waits for memory on one thread as on two, and its sound is
# better made on the other.
TWO_CORES_BYTES = 250e6
NUM_THREADS = torch.get_num_threads()  # as it is before any engine runs


class Backend(NamedTuple):
    """What carries requests through the stages of a checkpoint."""

    core: Core
    chain: Chain
    positions: int  # of one utterance


OpenWorks = Callable[[LoadedCheckpoint, EngineConfig], Backend]


def open_here(speaker: LoadedCheckpoint, config: EngineConfig) -> Backend:
    """Put all stages to work in this process. Raises `ConfigurationError` where the memory does not suffice."""
    slots, positions = measure_slots(speaker, config)
    chain = speaker.loaded.chain(slots, positions)
    return Backend(make_core(chain, speaker, config), chain, positions)


def make_core(chain: Chain, speaker: LoadedCheckpoint, config: EngineConfig) -> EngineCore:
    """Give the core of a chain's stages, by the settings."""
    return EngineCore(
        chain.policies,
        chain.stages,
        make_line(config),
        ByteCache(round(config.prefix_cache_mb * 1e6), config.kv_cache_size),
        choose_threads(chain, speaker.loaded.num_bytes),
        clears_memory=config.vram_clear_on_oom,
        stuck_after_s=config.stuck_after_s,
    )


def make_line(config: EngineConfig) -> WaitingLine:
    """Give the waiting line by the settings."""
    return WaitingLine(config.max_queue_size, batch_timeout_ms=config.batch_timeout_ms, grouping=config.batch_grouping)


def open_references(form: VoiceFormat, config: EngineConfig) -> ReferenceCache:
    """Open the cache of encoded recordings, by the settings."""
    path, max_bytes = config.reference_cache_path, round(config.reference_cache_disk_mb * 1e6)
    store = None if path is None else ReferenceStore(path, form, max_bytes)
    return ReferenceCache(max_bytes=REFERENCE_BYTES, max_entries=config.reference_cache_size, store=store)


class Synthesizer:
    """Speaks sentence pieces with one loaded checkpoint; safe to use from several threads."""

    def __init__(
        self,
        speaker: LoadedCheckpoint,
        config: EngineConfig,
        metrics: EngineMetrics | None = None,
        *,
        open_backend: OpenWorks = open_here,
    ) -> None:
        self._speaker, self._loaded = speaker, speaker.loaded
        self.core, self._chain, self.positions = open_backend(speaker, config)
        self.references = open_references(speaker.description.voice, config)
        self._numbers = itertools.count()
        self._prefix: OutputQueue | None = None  # of the last `read_prefix`
        self._ahead = AheadCompiler(speaker, self._chain.stages, config)
        self.core.start()
        with ExitStack() as cleanup:
            cleanup.callback(self.core.stop, drains=False)
            cleanup.callback(self._ahead.close)
            self._warm_up()
            cleanup.pop_all()
        self.core.metrics = metrics or EngineMetrics()  # the warm-up is not counted
        self.core.line.forget()
        self.references.start()
        self.core.watch()  # what is compiled or loaded with the first words may take its time

    def close(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        """Take in no more; end what is being spoken, or finish it first."""
        self._ahead.close()
        self.references.close()
        self.core.stop(drains=drains, timeout_s=timeout_s)

    def encode(self, wave: Tensor, check: Check | None = None) -> Tensors:
        """Encode one reference wave [samples] to the tensors of a voice; the first call loads the encoder.

        Raises `CancelledError` when `check` does, `QueueFullError`, `CapacityError` or `EngineNotReadyError`.
        """
        encoding = self.core.do(partial(self._loaded.condition, wave))
        if check is not None:
            check.cancels(encoding)
        return {name: tensor.cpu() for name, tensor in encoding.result().items()}

    def speak(
        self,
        pieces: Sequence[str],
        voices: Sequence[Voice],
        sampling: SamplingParams,
        *,
        deadline: float,
        profile: ChunkProfile = "balanced",
        streams: bool = True,
        flow: tuple[str, str] = ("", ""),
    ) -> OutputQueue:
        """Begin to speak `pieces`; their sound comes out in order, the finish reason with the last chunk.

        `deadline` is a `time.monotonic()`, `flow` the client and group that take turns in the queue. Prompts of later
        pieces are built shortly before their turn. Raises `CapacityError`, `QueueFullError` or `EngineNotReadyError`
        at once; from the queue come `CapacityError`, `GenerationError`, `RequestTimeoutError` and
        `EngineNotReadyError`.
        """
        queue = OutputQueue(lambda: self.core.cancel(request), whole=not streams)
        arrived = time.monotonic()
        request = Request(
            number=next(self._numbers),
            speech=AudioOutput(queue, sample_rate=self._chain.sample_rate, arrived=arrived, is_streamed=streams),
            sampling=sampling,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            arrived=arrived,
            deadline=deadline,
            profile=profile,
            flow=flow,
        )
        voices = list(voices)
        builds = [partial(self._utterance, request, index, text, voices) for index, text in enumerate(pieces)]
        has_voice = bool(voices) or len(self._chain.stages) == 1
        num_built = MAX_QUEUED if has_voice else 1
        request.utterances = [build() for build in builds[:num_built]]
        request.later.extend(builds[num_built:])
        if request.later:
            if has_voice:  # refuse now what would be refused later
                self._utterance(request, 0, max(pieces[num_built:], key=len), voices)
            else:
                request.set_voice = partial(self._set_voice, voices, pieces[0])
        self.core.submit(request)
        self.cancel_prefix()
        return queue

    def prompt(self, voice: Voice) -> Prompt:
        """Give the prompt that `voice` begins, for what is shared of it and the key of that.

        Raises `VoiceError` if it does not fit the model, `CapacityError` if it leaves no room for a text.
        """
        prompt = self._loaded.prompt(WARM_UP_TEXT, [voice])
        if len(prompt.items) >= self.positions:
            raise CapacityError(
                f"the voice makes {prompt.num_shared} positions of {self.positions} that a slot holds; "
                "use a shorter reference"
            )
        return prompt

    def prefix_bytes(self, prompt: Prompt) -> int:
        """Give the memory that what is shared of a prompt takes once it is read."""
        return prompt.num_shared * self._loaded.position_bytes

    @property
    def num_slots(self) -> int:
        """Utterances that are spoken at once."""
        return self.core.slots.count

    @property
    def has_room_to_spare(self) -> bool:
        """Whether nobody waits, and one more request would leave a slot for the next who comes."""
        slots = self.core.slots
        return not len(self.core.line) and slots.num_free > min(1, slots.count - 1)

    def read_prefix(self, voice: Voice) -> bool:
        """Prefill `voice` into the cache by a request of one step, which any other request cancels.

        Return whether it was finished. Called by one thread. Raises `EngineError`.
        """
        accepted = self.core.line.stats.accepted
        try:
            queue = self.speak([WARM_UP_TEXT], [voice], ONE_STEP, deadline=float("inf"), streams=False)
        except QueueFullError:
            return False
        self._prefix = queue
        if self.core.line.stats.accepted > accepted + 1:  # the other request came before the line above
            queue.close()
        return all(chunk.finish_reason != "cancelled" for chunk in queue)

    def cancel_prefix(self) -> None:
        """Cancel the request of `read_prefix`, if there is one."""
        if (prefix := self._prefix) is not None:
            prefix.close()

    def describe(self) -> dict[str, Any]:
        """Tell of waiting line, slots and caches at this moment."""
        core, slots = self.core, self.core.slots
        return {
            "queue": asdict(core.line.stats) | {"max_size": core.line.max_size},
            "slots": {"free": slots.num_free, "total": slots.count, "columns": self.positions},
            "requests": core.num_requests,
            "prefix_cache": asdict(core.prefixes.stats),
            "reference_cache": asdict(self.references.stats),
        }

    def families(self) -> Iterator[Family]:
        """Give as metrics what is so at this moment, and what the caches and the waiting line have counted."""
        queue, slots = self.core.line.stats, self.core.slots
        yield Family("queue_waiting", "gauge", "Requests that wait for a slot", queue.waiting)
        yield Family("queue_refused_total", "counter", "Requests refused since the queue was full", queue.refused)
        yield Family(
            "slots", "gauge", "Slots", {"taken": slots.count - slots.num_free, "free": slots.num_free}, "state"
        )
        stats = {"prefix": self.core.prefixes.stats, "reference": self.references.stats}
        for name, kind, description in CACHE_FAMILIES:
            figures = {cache: float(getattr(values, name)) for cache, values in stats.items()}
            suffix = "_total" if kind == "counter" else ""
            yield Family(f"cache_{name.removeprefix('num_')}{suffix}", kind, description, figures, "cache")

    def _utterance(self, request: Request, index: int, text: str, voices: Sequence[Voice]) -> Utterance:
        prompt = self._loaded.prompt(text, voices)
        room = self._chain.room(prompt)
        if room < 1:
            raise CapacityError(
                f"text and references make {len(prompt.items)} positions; a slot holds {self.positions}. "
                "Use a shorter reference, fewer of them, or give the engine more memory or larger slots "
                "(S1_MINI_KV_CACHE_GB, S1_MINI_MAX_COLUMNS)."
            )
        return Utterance(request, index, prompt, min(request.sampling.max_new_tokens, room))

    def _set_voice(self, voices: list[Voice], text: str, items: Sequence[np.ndarray]) -> None:
        """Add the voice of a request's first utterance, which speaks `text`, from what its stages have put out."""
        voices.append(self._loaded.own_voice(items, text))

    def _warm_up(self) -> None:
        """Run everything once, so that nothing is made anew for the first request. By chance nothing may be said."""
        for sampling in WARM_UPS:
            try:
                list(self.speak([WARM_UP_TEXT], (), sampling, deadline=float("inf")))
            except GenerationError:
                if sampling is WARM_UPS[-1]:
                    raise
            else:
                return


def choose_threads(chain: Chain, num_bytes: int) -> Threads:
    """Choose the threads of a chain's stages: one for a device's models, and one for each other where that is worth it.

    On a CPU with a small model, step and codec keep a core busy each; on a GPU each has a queue of work there, and
    while one thread waits for a frame, the other hands out sound. What is done in another process is waited for apart.
    """
    devices = [stage.device for stage in chain.stages]
    last = len(devices) - 1
    most = TWO_CORES_BYTES if num_cores() == 2 else ONE_THREAD_BYTES
    steps_on_one = all(device.type == "cpu" for device in devices) and num_bytes < most

    def enter(stage: int) -> None:
        torch.set_num_threads(1 if steps_on_one else NUM_THREADS)
        if devices[stage].type == "cuda":
            torch.cuda.set_device(devices[stage])

    several = any(device.type == "cuda" for device in devices) or any(policy.is_remote for policy in chain.policies)
    if last and ((steps_on_one and num_cores() > 1) or several):
        groups: dict[str, tuple[int, ...]] = {}
        for stage, (device, policy) in enumerate(zip(devices[:-1], chain.policies, strict=False)):
            name = "model" if device == devices[0] else f"model on {device}"
            if not policy.is_autoregressive or policy.is_remote:
                name = policy.name  # its calls take long, and steps would wait for them
            groups[name] = (*groups.get(name, ()), stage)
        helps = chain.policies[-1].helped_size > 0 and devices[0] == devices[last]
        return Threads({**groups, "sound": (last,)}, helps=helps, enter=enter)
    return Threads({"engine": tuple(range(last + 1))}, enter=enter)
