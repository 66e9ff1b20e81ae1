"""What the engine's bookkeeping costs: its own worker with a device that does nothing and takes no time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import torch

from s1_mini.audio.join import Joiner
from s1_mini.byte_cache import ByteCache
from s1_mini.families.base import Prompt
from s1_mini.runtime.batch_queue import BatchQueue
from s1_mini.runtime.batch_worker import BatchedModelWorker
from s1_mini.runtime.job import Job, Piece
from s1_mini.runtime.model_runner import HostFrames
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import SamplingParams

BLOCKS = 10  # of turns, whose median counts: what else the machine does in between is in few of them


class NullRunner:
    """Stands for the device in measuring what everything else costs: frames and sound that are nothing."""

    def __init__(self, slots: int) -> None:
        self.slots = self.num_free_rows = slots
        self.codec = self
        self.sample_rate = 16_000
        self.sounds_beside = self.decodes_together = False
        self._frames = HostFrames(np.zeros((slots, 10), np.int64), [False] * slots, [True] * slots, [])
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

    def step(self, pieces: Sequence[Piece]) -> HostFrames:
        """Give the same frame again."""
        return replace(self._frames, pieces=pieces)

    def take_row(self, job: Job) -> bool:
        """Give one to all."""
        job.row = 0
        return True

    def decode(self, jobs: Sequence[Job], sizes: Sequence[int]) -> list[np.ndarray]:  # noqa: ARG002 - as the runner
        """Give silence."""
        return [self._wave] * len(jobs)


def measure_scheduler(rows: int, turns: int) -> float:
    """Milliseconds that one turn costs beside the device's work, with `rows` pieces that all stream."""
    queue_ = BatchQueue(10 * rows)
    worker = BatchedModelWorker(NullRunner(rows), queue_, ByteCache(0))  # type: ignore[arg-type]
    prompt, numbers = Prompt(torch.zeros(11, 40, dtype=torch.int64), 0), count()
    for _ in range(rows):
        outbox, joiner = Outbox(lambda: None), Joiner(sample_rate=16_000)
        now = time.monotonic()
        job = Job(next(numbers), outbox, joiner, SamplingParams(), 0, now, float("inf"), streams=True)
        job.pieces = [Piece(job, 0, prompt, max_frames=10**9)]
        worker.submit(job)
    while len(worker.scheduler.running) < rows:
        worker.turn()
    blocks = []
    for _ in range(BLOCKS):
        begun = time.perf_counter()
        for _ in range(turns // BLOCKS):
            worker.turn()
        blocks.append(1000 * (time.perf_counter() - begun) / (turns // BLOCKS))
    return statistics.median(blocks)
