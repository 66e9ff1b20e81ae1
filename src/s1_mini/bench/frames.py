"""How long a frame takes at some numbers of rows: the device alone, by its own clock where it has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from s1_mini.audio.join import Joiner
from s1_mini.families.base import Prompt
from s1_mini.runtime.job import Job, Piece
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.model_runner import SPAN, ModelRunner
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import SamplingParams

WARM_UP = 5  # frames


@dataclass(frozen=True)
class FrameTime:
    """Milliseconds of one frame of `rows` rows."""

    rows: int
    device_ms: float  # replays of the frame's graph back to back; without graphs the same as `step_ms`
    step_ms: float  # as the engine makes it, with what the host looks at

    @property
    def host_ms(self) -> float:
        """What the host adds."""
        return max(0.0, self.step_ms - self.device_ms)


class FrameBench:
    """A runner whose rows have `context` columns each and make `frames` frames at a time."""

    def __init__(self, speaker: Speaker, *, slots: int, context: int, frames: int) -> None:
        self._model, self._context, self._frames = speaker.model, context, frames
        columns = -(-(context + frames + WARM_UP + 1) // SPAN) * SPAN
        self._runner = ModelRunner(speaker, slots=slots, columns=columns)
        self._runner.enter_thread()
        self._runner.capture()
        # Keys and values stay zeros: how long it takes does not depend on what they are.
        self._columns, self._whole = (
            torch.zeros(self._model.num_codebooks + 1, count, dtype=torch.int64) for count in (context, columns)
        )

    def measure(self, rows: int) -> FrameTime:
        """Make frames with `rows` rows, once launched back to back and once as the engine does."""
        pieces = [self._start(slot) for slot in range(rows)]
        try:
            step_ms = self._time(lambda: self._runner.step(pieces))
            for piece in pieces:
                self._runner.release(piece.slot or 0)
            pieces = [self._start(slot) for slot in range(rows)]
            is_captured = self._runner.launch(rows)
            device_ms = self._time(lambda: self._runner.launch(rows)) if is_captured else step_ms
        finally:
            for piece in pieces:
                self._runner.release(piece.slot or 0)
        return FrameTime(rows, device_ms, step_ms)

    def _start(self, slot: int) -> Piece:
        job = Job(slot, Outbox(lambda: None), Joiner(sample_rate=1), SamplingParams(), slot, 0.0, float("inf"))
        piece = Piece(job, 0, Prompt(self._columns, 0), self._frames + WARM_UP, slot=slot)
        self._runner.start(piece)
        piece.prompt = Prompt(self._whole, 0)  # without a graph, a step looks at what it has at the end
        return piece

    def _time(self, work: Callable[[], object]) -> float:
        for _ in range(WARM_UP - 1):
            work()
        if self._model.device.type != "cuda":
            begun = time.perf_counter()
            for _ in range(self._frames):
                work()
            return 1000 * (time.perf_counter() - begun) / self._frames
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(self._frames):
            work()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / self._frames


def measure_frames(speaker: Speaker, rows: Sequence[int], *, context: int, frames: int) -> list[FrameTime]:
    """Measure each number of rows, with `context` columns at first and `frames` more at the end."""
    threads = torch.get_num_threads()
    try:
        bench = FrameBench(speaker, slots=max(rows), context=context, frames=frames)
        return [bench.measure(count) for count in rows]
    finally:
        torch.set_num_threads(threads)
