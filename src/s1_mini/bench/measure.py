"""How fast an engine is: through its own front door, by threads that listen as clients do."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from s1_mini.audio.join import Joiner
from s1_mini.bench.workload import Ask
from s1_mini.byte_cache import ByteCache
from s1_mini.engine import ProductionTTSEngine
from s1_mini.models.base import Prompt
from s1_mini.runtime.batch_queue import BatchQueue
from s1_mini.runtime.batch_worker import BatchedModelWorker
from s1_mini.runtime.job import Job, Piece
from s1_mini.runtime.model_runner import HostFrames
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import ChunkProfile, SamplingParams


@dataclass(frozen=True)
class Load:
    """What came of a workload at one concurrency."""

    name: str
    requests: int
    failed: int
    seconds: float
    audio_s: float
    first_ms_p50: float  # from the request to the first samples
    first_ms_p95: float

    @property
    def audio_per_s(self) -> float:
        """Seconds of sound per second of work."""
        return self.audio_s / self.seconds


def measure_load(
    name: str, engine: ProductionTTSEngine, asks: Sequence[Ask], *, concurrency: int, profile: ChunkProfile
) -> Load:
    """Stream all of `asks`, `concurrency` at a time."""
    waiting: queue.SimpleQueue[Ask] = queue.SimpleQueue()
    for ask in asks:
        waiting.put(ask)
    firsts: list[float] = []
    lengths: list[float] = []
    failures: list[Exception] = []

    def listen() -> None:
        while True:
            try:
                ask = waiting.get_nowait()
            except queue.Empty:
                return
            begun, first, length = time.perf_counter(), None, 0.0
            options = {"seed": ask.seed, "max_new_tokens": ask.max_new_tokens}
            try:
                for chunk in engine.stream(ask.text, chunk_profile=profile, **options):  # type: ignore[arg-type]
                    if first is None and len(chunk.wave):
                        first = time.perf_counter() - begun
                    length += len(chunk.wave) / chunk.sample_rate
            except Exception as error:
                failures.append(error)
            firsts.append(float("nan") if first is None else first)
            lengths.append(length)

    threads = [threading.Thread(target=listen) for _ in range(concurrency)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    p50, p95 = (1000 * float(np.nanpercentile(firsts, p)) for p in (50, 95))
    return Load(name, len(asks), len(failures), seconds, sum(lengths), p50, p95)


class NullRunner:
    """Stands for the device in measuring what everything else costs: frames and sound that are nothing."""

    def __init__(self, slots: int) -> None:
        self.slots = self.num_free_rows = slots
        self.codec = self
        self.sample_rate = 16_000
        self.sounds_beside = False
        self._frames = HostFrames(torch.zeros(slots, 10, dtype=torch.int64), [False] * slots, [True] * slots)
        self._wave = np.zeros(640, np.float32)

    def capture(self) -> None:
        """Do nothing."""

    def read(self, piece: Piece, columns: int) -> None:
        """Do nothing."""

    def start(self, piece: Piece) -> None:
        """Do nothing."""

    def release(self, slot: int) -> None:
        """Do nothing."""

    def give_back_row(self, job: Job) -> None:
        """Do nothing."""

    def step(self, pieces: Sequence[Piece]) -> HostFrames:  # noqa: ARG002 - as the runner
        """Give the same frame again."""
        return self._frames

    def decode(self, job: Job, size: int) -> np.ndarray:  # noqa: ARG002 - as the runner
        """Give silence."""
        return self._wave


def measure_scheduler(rows: int, turns: int) -> float:
    """Milliseconds that one turn costs beside the device's work, with `rows` pieces that all stream."""
    queue_ = BatchQueue(10 * rows)
    worker = BatchedModelWorker(NullRunner(rows), queue_, ByteCache(0), max_decodes=rows)  # type: ignore[arg-type]
    prompt, numbers = Prompt(torch.zeros(11, 40, dtype=torch.int64), 0), count()
    for _ in range(rows):
        outbox, joiner = Outbox(lambda: None), Joiner(sample_rate=16_000)
        now = time.monotonic()
        job = Job(next(numbers), outbox, joiner, SamplingParams(), 0, now, float("inf"), streams=True)
        job.pieces = [Piece(job, 0, prompt, max_frames=10**9)]
        worker.submit(job)
    while len(worker.scheduler.running) < rows:
        worker.turn()
    begun = time.perf_counter()
    for _ in range(turns):
        worker.turn()
    return 1000 * (time.perf_counter() - begun) / turns
