"""What the model does again and again, as captured CUDA graphs, all made before the first request.

A whole frame of all rows for each of some batch sizes, and the reading of prompt columns for each of some numbers of
them. Everything lies where it lay at capture (`models/base.py`), so a replay is one launch, whatever rows run. What the
host must look at is copied to pinned memory by the graph itself; the one wait of a frame is for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s1_mini.layers.staging import stage
from s1_mini.models.base import SamplingTensors, SpeechModel

# Rows of the graphs: a batch runs in the smallest that holds it.
LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
READS = (16, 32, 64, 128, 256)  # columns of a prompt; longer ones are read in several goes
WARM_UPS = 2  # before a capture: kernels are compiled, workspaces made


@dataclass(frozen=True)
class _Frame:
    graph: torch.cuda.CUDAGraph
    codes: Tensor  # [rows, K], pinned
    ends: Tensor  # [2, rows] bool, pinned: stop and valid


@dataclass(frozen=True)
class _Read:
    graph: torch.cuda.CUDAGraph
    columns: Tensor  # [N, K + 1] on the device, as the two below
    slots: Tensor  # [N]
    positions: Tensor  # [N]


class FrameGraphs:
    """The graphs of one model state."""

    def __init__(self, model: SpeechModel, state: Any, sampling: SamplingTensors, *, slots: int, span: int) -> None:
        self._frames: dict[int, _Frame] = {}
        self._reads: dict[int, _Read] = {}
        self._rows = [rows for rows in LADDER if rows < slots] + [slots]
        self._done = torch.cuda.Event()
        pool = torch.cuda.graph_pool_handle()
        for count in reversed(READS):  # the largest first: the others find room in its pool
            self._reads[count] = _capture_read(model, state, span=span, count=count, pool=pool)
        for rows in reversed(self._rows):
            self._frames[rows] = _capture_frame(model, state, sampling, span=span, rows=rows, pool=pool)

    def replay(self, rows: int) -> None:
        """Launch one frame of the first `rows` rows and wait for nothing: for measurements."""
        self._frame(rows).graph.replay()

    def step(self, rows: int) -> tuple[np.ndarray, list[bool], list[bool]]:
        """Make one frame of the first `rows` rows: codes [rows or more, K], and for each whether it stops, is valid."""
        frame = self._frame(rows)
        frame.graph.replay()
        self._done.record()
        self._done.synchronize()
        stop, valid = frame.ends.tolist()
        return frame.codes.numpy().copy(), stop, valid  # the next frame overwrites it

    def _frame(self, rows: int) -> _Frame:
        return self._frames[next(size for size in self._rows if size >= rows)]

    def read(self, slot: int, columns: Tensor, start: int) -> None:
        """Read prompt columns [K + 1, n] into `slot` from column `start` on."""
        for part in columns.split(READS[-1], dim=1):
            count = part.shape[1]
            read = self._reads[next(size for size in READS if size >= count)]
            positions = torch.full(read.positions.shape, -1)
            positions[:count] = torch.arange(start, start + count)
            read.columns[:count] = stage(part.t(), read.columns.device)
            read.positions.copy_(stage(positions, read.positions.device))
            read.slots.fill_(slot)
            read.graph.replay()
            start += count


def _capture(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph


def _capture_frame(
    model: SpeechModel, state: Any, sampling: SamplingTensors, *, span: int, rows: int, pool: Any
) -> _Frame:
    ends = torch.zeros(2, rows, dtype=torch.bool, pin_memory=True)
    codes = torch.zeros(rows, model.num_codebooks, dtype=torch.int64, pin_memory=True)

    def frame() -> None:
        frames = model.step(state, sampling, span, rows)
        codes.copy_(frames.codes, non_blocking=True)
        ends[0].copy_(frames.stop, non_blocking=True)
        ends[1].copy_(frames.valid, non_blocking=True)

    return _Frame(_capture(frame, pool), codes, ends)


def _capture_read(model: SpeechModel, state: Any, *, span: int, count: int, pool: Any) -> _Read:
    columns = torch.zeros(count, model.num_codebooks + 1, dtype=torch.int64, device=model.device)
    slots = torch.zeros(count, dtype=torch.int64, device=model.device)
    positions = torch.full_like(slots, -1)
    graph = _capture(lambda: model.prefill_rows(state, columns, slots, positions, span), pool)
    return _Read(graph, columns, slots, positions)
