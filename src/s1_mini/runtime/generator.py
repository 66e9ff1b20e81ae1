"""What speaks: one loaded checkpoint, its memory, its door and its worker, put together.

From here upward nobody knows of slots or turns: pieces of text go in, an outbox of sound comes out.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from s1_mini.audio.join import Joiner
from s1_mini.byte_cache import ByteCache
from s1_mini.capacity.memory import AUTO_SLOTS, fit_slots
from s1_mini.config import EngineConfig
from s1_mini.exceptions import CapacityError, ConfigurationError, QueueFullError
from s1_mini.families.base import Prefix, Prompt
from s1_mini.metrics import EngineMetrics, Family
from s1_mini.runtime.batch_queue import BatchQueue
from s1_mini.runtime.batch_worker import BatchedModelWorker
from s1_mini.runtime.job import Job, Piece
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.model_runner import SPAN, ModelRunner
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import ChunkProfile, SamplingParams, Voice
from s1_mini.voices.format import Tensors
from s1_mini.voices.reference_cache import ReferenceCache

GB = 2**30
CPU_KV_GB = 1.0  # where nothing is said about it
CPU_SLOTS = 4  # likewise; on a GPU as many as there is room for, up to `AUTO_SLOTS`
REFERENCE_BYTES = 64_000_000  # in memory: some hours of references
CACHE_FAMILIES: tuple[tuple[str, Literal["counter", "gauge"], str], ...] = (
    ("entries", "gauge", "Entries of a cache"),
    ("num_bytes", "gauge", "Bytes that a cache holds"),
    ("hits", "counter", "Lookups that found something"),
    ("misses", "counter", "Lookups that found nothing"),
    ("evictions", "counter", "Entries let go for others"),
)
WARM_UP = SamplingParams(max_new_tokens=2, seed=0)
ONE_FRAME = SamplingParams(max_new_tokens=1, seed=0)
WARM_UP_TEXT = "Ready."
CHECK_S = 0.05  # how often who encodes looks whether anybody still wants it
GIVE_WAY_S = 0.005  # how often a request of no urgency looks whether somebody has come


class Generator:
    """Speaks sentence pieces with one loaded checkpoint; safe to use from several threads."""

    def __init__(self, speaker: Speaker, config: EngineConfig, metrics: EngineMetrics | None = None) -> None:
        self._speaker, self._model = speaker, speaker.model
        slots, columns = measure_slots(speaker, config)
        queue = BatchQueue(
            config.max_queue_size, batch_timeout_ms=config.batch_timeout_ms, grouping=config.batch_grouping
        )
        prefixes: ByteCache[Prefix] = ByteCache(round(config.prefix_cache_mb * 1e6), config.kv_cache_size)
        runner = ModelRunner(speaker, slots=slots, columns=columns)
        self.worker = BatchedModelWorker(
            runner,
            queue,
            prefixes,
            clears_memory=config.vram_clear_on_oom,
            stuck_after_s=config.stuck_after_s,
        )
        self.references = ReferenceCache(
            speaker.description.voice,
            max_bytes=REFERENCE_BYTES,
            max_entries=config.reference_cache_size,
            directory=config.reference_cache_path,
        )
        self._numbers = itertools.count()
        self.worker.start()
        try:
            self._warm_up()
        except BaseException:
            self.worker.stop(drains=False)
            raise
        self.worker.metrics = metrics or EngineMetrics()  # the warm-up is not counted
        queue.forget()
        self.worker.watch()  # what is compiled or loaded with the first words may take its time

    def close(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        """Take in no more; end what is being spoken, or finish it first."""
        self.worker.stop(drains=drains, timeout_s=timeout_s)

    def encode(self, wave: Tensor, check: Callable[[], None] = lambda: None) -> Tensors:
        """Encode one reference wave [samples] to the tensors of a voice; what only that needs is loaded at the first.

        `check` is called now and then; what it raises ends the work. Raises `QueueFullError`, `CapacityError` or
        `EngineNotReadyError`.
        """
        encoding = self.worker.do(partial(self._speaker.loaded.condition, wave))
        while True:
            try:
                return {name: tensor.cpu() for name, tensor in encoding.result(CHECK_S).items()}
            except TimeoutError:
                try:
                    check()
                except BaseException:
                    encoding.cancel()
                    raise

    def speak(
        self,
        pieces: Sequence[str],
        voices: Sequence[Voice],
        sampling: SamplingParams,
        *,
        deadline: float,
        profile: ChunkProfile = "balanced",
        streams: bool = True,
    ) -> Outbox:
        """Begin to speak `pieces`; their sound comes out in order, the finish reason with the last chunk.

        `deadline` is a `time.monotonic()`. Raises `CapacityError`, `QueueFullError` or `EngineNotReadyError` at once;
        from the outbox come `CapacityError`, `GenerationError`, `RequestTimeoutError` and `EngineNotReadyError`.
        """
        outbox = Outbox(lambda: self.worker.cancel(job))
        job = Job(
            number=next(self._numbers),
            outbox=outbox,
            joiner=Joiner(sample_rate=self._speaker.codec.sample_rate),
            sampling=sampling,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            arrived=time.monotonic(),
            deadline=deadline,
            profile=profile,
            streams=streams,
        )
        if voices or len(pieces) == 1:
            job.pieces = self._pieces(job, pieces, voices)
        else:
            job.pieces = self._pieces(job, pieces[:1], ())
            job.continue_with = partial(self._continue, job, pieces)
        self.worker.submit(job)
        return outbox

    def prefix(self, voice: Voice) -> Prompt:
        """Give the prompt that `voice` begins, for its shared columns and their key.

        Raises `VoiceError` if it does not fit the model, `CapacityError` if they leave no room for a text.
        """
        prompt = self._model.prompt(WARM_UP_TEXT, [voice])
        columns = self.worker.runner.columns
        if prompt.columns.shape[1] >= columns:
            raise CapacityError(
                f"the voice makes {prompt.num_shared} columns of {columns} that a slot holds; use a shorter reference"
            )
        return prompt

    @property
    def has_room_to_spare(self) -> bool:
        """Whether nobody waits, and one more request would leave a slot for the next who comes."""
        slots = self.worker.slots
        return not len(self.worker.queue) and slots.num_free > min(1, slots.count - 1)

    @property
    def column_bytes(self) -> int:
        """Bytes of keys and values of each column that is remembered."""
        return self._model.column_bytes

    def read_prefix(self, voice: Voice, stopped: threading.Event) -> bool:
        """Have the prefix of `voice` read into its cache, by a request of one frame that gives way to any newcomer.

        Tell whether it came to its end. Raises `EngineError`.
        """
        accepted = self.worker.queue.stats.accepted
        try:
            outbox = self.speak([WARM_UP_TEXT], [voice], ONE_FRAME, deadline=float("inf"), streams=False)
        except QueueFullError:
            return False
        while not outbox.has_ended:
            if stopped.wait(GIVE_WAY_S) or self.worker.queue.stats.accepted > accepted + 1:
                outbox.close()
                break
        return all(chunk.finish_reason != "cancelled" for chunk in outbox)

    def describe(self) -> dict[str, Any]:
        """Tell of queue, slots and caches at this moment."""
        worker = self.worker
        return {
            "queue": asdict(worker.queue.stats) | {"max_size": worker.queue.max_size},
            "slots": {"free": worker.slots.num_free, "total": worker.slots.count, "columns": worker.runner.columns},
            "requests": worker.num_jobs,
            "prefix_cache": asdict(worker.prefixes.stats),
            "reference_cache": asdict(self.references.stats),
        }

    def families(self) -> Iterator[Family]:
        """Give as metrics what is so at this moment, and what the caches and the queue have counted."""
        queue, slots = self.worker.queue.stats, self.worker.slots
        yield Family("queue_waiting", "gauge", "Sentence pieces that wait for a slot", queue.waiting)
        yield Family("queue_refused_total", "counter", "Requests refused since the queue was full", queue.refused)
        yield Family(
            "slots", "gauge", "Slots", {"taken": slots.count - slots.num_free, "free": slots.num_free}, "state"
        )
        stats = {"prefix": self.worker.prefixes.stats, "reference": self.references.stats}
        for name, kind, description in CACHE_FAMILIES:
            figures = {cache: float(getattr(values, name)) for cache, values in stats.items()}
            suffix = "_total" if kind == "counter" else ""
            yield Family(f"cache_{name.removeprefix('num_')}{suffix}", kind, description, figures, "cache")

    def _pieces(self, job: Job, texts: Sequence[str], voices: Sequence[Voice], first: int = 0) -> list[Piece]:
        return [self._piece(job, first + index, text, voices) for index, text in enumerate(texts)]

    def _piece(self, job: Job, index: int, text: str, voices: Sequence[Voice]) -> Piece:
        prompt = self._model.prompt(text, voices)
        columns = prompt.columns.shape[1]
        room = min(self.worker.runner.columns - columns, self._speaker.codec.max_frames)
        if room < 1:
            raise CapacityError(
                f"text and references make {columns} columns; a slot holds {self.worker.runner.columns}. "
                "Use a shorter reference, fewer of them, or give the engine more memory or larger slots "
                "(S1_MINI_KV_CACHE_GB, S1_MINI_MAX_COLUMNS)."
            )
        return Piece(job, index, prompt, min(job.sampling.max_new_tokens, room))

    def _continue(self, job: Job, texts: Sequence[str], codes: Tensor) -> list[Piece]:
        """Make the other pieces, in the voice that the first has found."""
        return self._pieces(job, texts[1:], [self._model.own_voice(codes, texts[0])], first=1)

    def _warm_up(self) -> None:
        """Run everything once, so that nothing is made anew for the first request."""
        list(self.speak([WARM_UP_TEXT], (), WARM_UP, deadline=float("inf")))


def measure_slots(speaker: Speaker, config: EngineConfig) -> tuple[int, int]:
    """Choose how many pieces are spoken at once and how many columns each may have, by settings and memory.

    Raises `ConfigurationError` if the memory does not suffice for one.
    """
    model = speaker.model
    on_gpu = model.device.type == "cuda"
    if on_gpu and config.kv_cache_gb is None:
        free = torch.cuda.mem_get_info(model.device)[0]
        unused = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
        return slots_for(free + unused, speaker, config)
    wanted = (config.max_batch_size or (AUTO_SLOTS if on_gpu else CPU_SLOTS)) if config.enable_batching else 1
    budget = (config.kv_cache_gb or CPU_KV_GB) * GB
    columns = min(model.max_columns, config.max_columns or model.max_columns)
    slots = min(wanted, int(budget // (columns * model.column_bytes)))
    if slots >= 1:
        return slots, columns
    columns = int(budget // model.column_bytes) // SPAN * SPAN
    return 1, _enough(columns, budget, model.column_bytes)


def slots_for(free_bytes: float, speaker: Speaker, config: EngineConfig) -> tuple[int, int]:
    """Choose slots and columns for the memory that is free beside the weights, leaving room for all else.

    This is what `s1-mini plan` foretells. Raises `ConfigurationError` if it does not suffice for one slot.
    """
    model = speaker.model
    columns = min(model.max_columns, config.max_columns or model.max_columns)
    needed = speaker.loaded.needed_positions(config.max_reference_s, config.chunk_length)
    demand = speaker.loaded.demand(round(1e6 * config.prefix_cache_mb))
    slots, columns = fit_slots(
        free_bytes,
        demand,
        wanted=(config.max_batch_size or AUTO_SLOTS) if config.enable_batching else 1,
        positions=columns,
        needed=columns if config.max_columns else needed,
        span=SPAN,
    )
    return slots, _enough(columns, max(0.0, free_bytes - demand.fixed), demand.position)


def _enough(columns: int, budget: float, column_bytes: int) -> int:
    if columns < SPAN:
        raise ConfigurationError(
            f"{budget / GB:.2f} GB of memory for keys and values hold {columns} columns of this checkpoint; "
            f"it needs {column_bytes * SPAN / 1e6:.1f} MB at the least (S1_MINI_KV_CACHE_GB)"
        )
    return columns
