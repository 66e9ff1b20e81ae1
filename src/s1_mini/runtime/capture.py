"""Capture CUDA graphs, those of frames on one stream and those of sound on another, the same in the whole process.

cuBLAS has a workspace for each stream of a thread, and a graph goes on with that of the stream it was captured on.
Graphs that run side by side must therefore not come from one stream: each would write over what the other's products
count in, and both may wait for ever. Torch gives out a pool of 32 streams in turn, so of two that were made at
different times nobody knows whether they are one and the same. These two are made together.

Several engines may be in one process, and one may speak while another starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

WARM_UPS = 2  # before a capture: kernels are compiled, workspaces made

# One capture at a time, its warm-ups included: on a stream that captures, what another engine does would be captured.
one_capture = threading.RLock()
# Torch refuses to replay a graph while it captures another: both touch its random numbers, of which ours use none.
_replays = threading.Lock()


class GraphStreams(NamedTuple):
    """Two streams of one GPU, never the same."""

    frames: torch.cuda.Stream
    sound: torch.cuda.Stream


def graph_streams(device: torch.device) -> GraphStreams:
    """Give the streams of a GPU; the first call makes them."""
    with one_capture:
        return _streams(torch.cuda.current_device() if device.index is None else device.index)


@lru_cache
def _streams(index: int) -> GraphStreams:
    return GraphStreams(torch.cuda.Stream(index), torch.cuda.Stream(index))


def capture(
    work: Callable[[], None], stream: torch.cuda.Stream, pool: Any, done: torch.cuda.Event | None = None
) -> Callable[[], None]:
    """Do `work` some times, then give what does it again in one launch, and records `done` behind it.

    What other threads do meanwhile is not captured.
    """
    with one_capture:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        graph = torch.cuda.CUDAGraph()
        captures = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with _replays, captures:  # the second waits for the device as it is entered
            work()

    def replay() -> None:
        with _replays:  # the event, too: the stream may be captured on as soon as it is free
            graph.replay()
            if done is not None:
                done.record()

    return replay
