"""A whole frame of all rows as one captured CUDA graph for each of some batch sizes, all made before the first request.

Everything a frame needs lies where it lay at capture (`models/base.py`), so a replay is one launch, whatever rows run.
What the host must look at is copied to pinned memory by the graph itself; the one wait of a frame is for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from s1_mini.models.base import Frames, SamplingTensors, SpeechModel

# Rows of the graphs: a batch runs in the smallest that holds it.
LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WARM_UPS = 2  # before a capture: kernels are compiled, workspaces made


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    codes: Tensor  # [rows, K] on the device
    ends: Tensor  # [2, rows] bool, pinned: stop and valid


class FrameGraphs:
    """The graphs of one model state."""

    def replay(self, rows: int) -> None:
        """Launch one frame of the first `rows` rows and wait for nothing: for measurements."""
        self._graphs[next(size for size in self._rows if size >= rows)].graph.replay()

    def __init__(self, model: SpeechModel, state: Any, sampling: SamplingTensors, *, slots: int, span: int) -> None:
        self._graphs: dict[int, _Graph] = {}
        self._rows = [rows for rows in LADDER if rows < slots] + [slots]
        pool = torch.cuda.graph_pool_handle()
        for rows in reversed(self._rows):  # the largest first: the others find room in its pool
            self._graphs[rows] = _capture(model, state, sampling, span=span, rows=rows, pool=pool)

    def step(self, rows: int) -> tuple[Tensor, list[bool], list[bool]]:
        """Make one frame of the first `rows` rows: codes [rows or more, K], and for each whether it stops, is valid."""
        graph = self._graphs[next(size for size in self._rows if size >= rows)]
        graph.graph.replay()
        codes = graph.codes.clone()  # the next frame overwrites it
        torch.cuda.current_stream().synchronize()
        stop, valid = graph.ends.tolist()
        return codes, stop, valid


def _capture(model: SpeechModel, state: Any, sampling: SamplingTensors, *, span: int, rows: int, pool: Any) -> _Graph:
    ends = torch.zeros(2, rows, dtype=torch.bool, pin_memory=True)

    def frame() -> Frames:
        frames = model.step(state, sampling, span, rows)
        ends[0].copy_(frames.stop, non_blocking=True)
        ends[1].copy_(frames.valid, non_blocking=True)
        return frames

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            frame()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        frames = frame()
    return _Graph(graph, frames.codes, ends)
