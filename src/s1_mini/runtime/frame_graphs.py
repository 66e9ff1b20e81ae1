"""What the model does again and again, as captured CUDA graphs, all made before the first request.

A whole frame of all rows for each of some batch sizes, and the reading of prompt columns for each of some numbers of
them. Everything lies where it lay at capture, so a replay is one launch, whatever rows run. What the
host must look at is copied to pinned memory by the graph itself; the one wait of a frame is for that. Prompts' columns
are collected and read together, at the latest before the next frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s1_mini.families.base import Frames, SamplingTensors, SpeechModel
from s1_mini.layers.staging import stage
from s1_mini.runtime.capture import capture, graph_streams

# Rows of the graphs: a batch runs in the smallest that holds it.
LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
READS = (16, 32, 64, 128, 256)  # columns of prompts; more are read in several goes

Replay = Callable[[], None]


@dataclass(frozen=True)
class _Frame:
    replay: Replay
    frames: Frames  # pinned


@dataclass(frozen=True)
class _Read:
    replay: Replay
    asked: Tensor  # [N, K + 3] on the device: a column of a prompt, its slot, its position


class FrameGraphs:
    """The graphs of one model state. On a CPU nothing is captured: the same is done step by step, to be looked at."""

    def __init__(self, model: SpeechModel, state: Any, sampling: SamplingTensors, *, slots: int, span: int) -> None:
        self._model, self._state, self._sampling, self._span = model, state, sampling, span
        self._captures = model.device.type == "cuda"
        self._collected: list[Tensor] = []  # [n, K + 3] each, as `_Read.asked`
        self._num_collected = 0
        self._rows = [rows for rows in LADDER if rows < slots] + [slots]
        self._done: torch.cuda.Event | None = None  # when the last frame is
        if self._captures:
            self._pool, self._done = torch.cuda.graph_pool_handle(), torch.cuda.Event()
        # The largest first: the others find room in its pool.
        self._reads = {count: self._prepare_read(count) for count in reversed(READS)}
        self._frames = {rows: self._prepare_frame(rows) for rows in reversed(self._rows)}

    def launch(self, rows: int) -> None:
        """Begin a frame of the first `rows` rows. What the last one gave must have been waited for, or is lost."""
        self.flush()
        self._launched = self._frame(rows)
        self._launched.replay()

    def wait(self) -> tuple[np.ndarray, list[bool], list[bool]]:
        """Wait for the frame that was launched: codes [rows or more, K], and whether each row stops, is valid."""
        if self._done is not None:
            self._done.synchronize()
        frames = self._launched.frames
        codes = frames.codes.numpy().copy()  # the next frame overwrites it
        return codes, frames.stop.tolist(), frames.valid.tolist()

    def replay(self, rows: int) -> None:
        """Launch one frame of the first `rows` rows and wait for nothing: for measurements."""
        self._frame(rows).replay()

    def read(self, slot: int, columns: Tensor, start: int) -> None:
        """Have prompt columns [K + 1, n] read into `slot` from column `start` on, by the next `flush` or `launch`."""
        for part in columns.split(READS[-1], dim=1):
            count = part.shape[1]
            if self._num_collected + count > READS[-1]:
                self.flush()
            positions = torch.arange(start, start + count)
            self._collected.append(torch.cat((part, torch.full((1, count), slot), positions.unsqueeze(0))).t())
            self._num_collected += count
            start += count

    def flush(self) -> None:
        """Read what was collected."""
        if not self._collected:
            return
        read = self._reads[next(size for size in READS if size >= self._num_collected)]
        asked = torch.zeros(read.asked.shape, dtype=torch.int64)
        asked[:, -1] = -1  # nothing there
        asked[: self._num_collected] = torch.cat(self._collected)
        self._collected, self._num_collected = [], 0
        read.asked.copy_(stage(asked, read.asked.device))
        read.replay()

    def _frame(self, rows: int) -> _Frame:
        return self._frames[next(size for size in self._rows if size >= rows)]

    def _prepare_frame(self, rows: int) -> _Frame:
        made = torch.zeros(rows, self._model.num_codebooks + 3, dtype=torch.int64, pin_memory=self._captures)

        def frame() -> None:
            frames = self._model.step(self._state, self._sampling, self._span, rows)
            made.copy_(frames.made, non_blocking=True)

        return _Frame(self._capture(frame, self._done), Frames(made))

    def _prepare_read(self, count: int) -> _Read:
        asked = torch.zeros(count, self._model.num_codebooks + 3, dtype=torch.int64, device=self._model.device)
        asked[:, -1] = -1

        def read() -> None:
            slots, positions = asked[:, -2].contiguous(), asked[:, -1].contiguous()
            self._model.prefill_rows(self._state, asked[:, :-2], slots, positions, self._span)

        return _Read(self._capture(read), asked)

    def _capture(self, work: Replay, done: torch.cuda.Event | None = None) -> Replay:
        return capture(work, graph_streams(self._model.device).frames, self._pool, done) if self._captures else work
