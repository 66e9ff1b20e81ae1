"""CUDA graphs of the repeated calls of a stage, all captured before the first request.

cuBLAS has a workspace for each stream of a thread, and a graph always uses the workspace of the stream on which it was
captured. Graphs that run concurrently must therefore be captured on different streams: otherwise their products would
overwrite each other's counters, and both graphs could hang. Torch takes streams in turn from a pool of 32, so that two
streams that are created at different times may be the same. The streams of all stages are therefore created together.

A process may have several engines, and an engine may run while another engine starts.

Before the first capture of a kind of call, all its sizes run once to find the kernels to compile. The kernels are then
compiled in parallel, in up to `MAX_COMPILERS` threads; one after another would take a minute (H200, 2026-11).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from s1_mini.arrays import copied, copy_bytes
from s1_mini.kernels.backend import compile_in_parallel
from s1_mini.layers.staging import Writes
from s1_mini.runtime.process import num_cores

MAX_COMPILERS = 16  # threads that compile kernels; more would wait for the GIL
STREAMS = 8  # number of CUDA streams per GPU; each stage that captures graphs uses one of them

# Held during a capture and its warm-ups, because a capture would also record other engines' work on the same stream.
one_capture = threading.RLock()
# By stage: held while a call is launched, so that stages do not wait for each other. A capture holds all of them: it
# would record inputs that another engine writes on its stream, and torch refuses to replay graphs.
_launches = [threading.RLock() for _ in range(STREAMS)]

Key = TypeVar("Key", bound=Hashable)
Wait = Callable[[], list[np.ndarray]]


def graph_stream(device: torch.device, stage_number: int) -> torch.cuda.Stream:
    """Return the stream on which a stage captures its graphs. The first call creates the streams of all stages."""
    with one_capture:
        return _streams(torch.cuda.current_device() if device.index is None else device.index)[stage_number]


def references_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which references are encoded; nothing is captured on it."""
    return graph_stream(device, STREAMS)


@lru_cache
def _streams(index: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(index) for _ in range(STREAMS + 1)]


def capture(work: Callable[[], None], stream: torch.cuda.Stream, pool: Any) -> Callable[[], None]:
    """Warm up and capture `work`; return a function that replays it.

    The warm-up loads kernels and allocates workspaces. The work of other threads is not captured.
    """
    with one_capture:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            work()
        graph = torch.cuda.CUDAGraph()
        captures = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with ExitStack() as launches:
            for stage in _launches:
                launches.enter_context(stage)
            with no_collections(), captures:  # `captures` first waits until the device is idle
                work()
    return graph.replay


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection in a block. Only one thread at a time may use this.

    A collection may destroy graphs of a stopped engine. If a thread that captures a graph destroyed another graph, CUDA
    would raise an error that ends the process.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Buffer(NamedTuple):
    """An input or output of a graph."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True)
class GraphOptions:
    """How the graphs of one kind of call are captured and replayed."""

    stream: torch.cuda.Stream | None = None  # capture stream; None: nothing is captured
    pool: Any = None  # memory pool that all graphs of a stage share, because only one of them runs at a time
    is_beside: bool = False  # replay on `stream` instead of the thread's current stream
    is_staged: bool = False  # copy inputs first, so that a call can be launched before the previous call ends
    is_ahead: bool = False  # copy outputs to two buffers in turn, so that a call can be launched before they are read
    sleeps: bool = False  # sleep instead of spinning while waiting for results
    own_kernels: bool = False  # capture without cuDNN, which would make plans for every size
    launches: AbstractContextManager[Any] = field(default_factory=nullcontext)  # held while a call is launched

    @classmethod
    def of_stage(cls, device: torch.device, stage_number: int) -> GraphOptions:
        """Return options that capture on the stage's stream with its own pool; on a CPU nothing is captured."""
        if device.type != "cuda":
            return cls()
        stream, pool = graph_stream(device, stage_number), torch.cuda.graph_pool_handle()
        return cls(stream, pool, launches=_launches[stage_number])


class StepGraphs(Generic[Key]):
    """The graphs of one call for several keys, such as batch sizes. They share pinned memory for inputs and outputs.

    Graphs are launched one at a time; a launch waits for the previous call that used the same output buffers. On a
    CPU, as in tests, the same code calls the functions without graphs.
    """

    def __init__(
        self,
        call: Callable[..., Sequence[Tensor]],
        keys: Sequence[Key],
        inputs: Callable[[Key], Sequence[Buffer]],
        outputs: Callable[[Key], Sequence[Buffer]],
        *,
        device: torch.device,
        options: GraphOptions,
    ) -> None:
        """Capture `call(key, *inputs)` for all `keys`. The largest key must be first; later graphs reuse its memory."""
        self._call, self._device, self._options = call, device, options
        # Inputs that are not staged would be overwritten while the previous call still reads them.
        assert not options.is_ahead or options.is_staged or not any(inputs(key) for key in keys)
        self._places = ["out", "other out"] if options.is_ahead else ["out"]
        has_outputs = options.stream is not None and any(outputs(key) for key in keys)
        self._done = [torch.cuda.Event(blocking=options.sleeps) if has_outputs else None for _ in self._places]
        self._launched: list[_Launched | None] = [None for _ in self._places]
        self._place = 0  # index of the previous call's output buffer
        self._writes = Writes(device)
        self._memory: dict[tuple[str, int], Tensor] = {}
        for key in keys:
            for at, buffer in enumerate(inputs(key)):
                self._reserve(("in", at), buffer, on_device=options.is_staged)
            for at, buffer in enumerate(outputs(key)):
                for place in self._places:
                    self._reserve((place, at), buffer)
                if options.is_ahead:
                    self._reserve(("made", at), buffer, on_device=True)
        self._graphs = {key: self._prepare(key, inputs(key), outputs(key)) for key in keys}
        if options.stream is not None:
            self._capture_all(options.stream)

    def launch(self, key: Key, *arrays: np.ndarray) -> Wait:
        """Launch the call of a key with these inputs; return a function that waits for the outputs."""
        graph = self._graphs[key]
        self._place = (self._place + 1) % len(self._places)
        last = self._launched[self._place]
        if last is not None:  # wait until that call has written its outputs and read its inputs
            last.wait()
        with self.on_stream():
            for place, array in zip(graph.inputs, arrays, strict=True):
                if self._options.is_staged:
                    self._writes.first(place, array)
                else:
                    target = place.numpy()
                    copy_bytes(target, np.ascontiguousarray(array, target.dtype))
            self._writes.run()
            self._replay(graph)
        launched = _Launched(graph.outputs[self._place], self._done[self._place])
        self._launched[self._place] = launched
        return launched.wait

    def replay(self, key: Key) -> None:
        """Launch the call of a key with the inputs that are in its buffers."""
        with self.on_stream():
            self._replay(self._graphs[key])

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Launch the work of a block on the stream of the calls, which no other engine captures meanwhile."""
        stream = self._options.stream if self._options.is_beside else None
        with self._options.launches, torch.cuda.stream(stream):
            yield

    def _reserve(self, name: tuple[str, int], buffer: Buffer, *, on_device: bool = False) -> None:
        size = prod(buffer.shape)
        known = self._memory.get(name)
        if known is None or known.numel() < size:
            is_pinned = self._options.stream is not None and not on_device
            device = self._device if on_device else torch.device("cpu")
            self._memory[name] = torch.zeros(size, dtype=buffer.dtype, device=device, pin_memory=is_pinned)

    def _views(self, kind: str, buffers: Sequence[Buffer]) -> list[Tensor]:
        return [self._memory[kind, at][: prod(buffer.shape)].view(buffer.shape) for at, buffer in enumerate(buffers)]

    def _prepare(self, key: Key, given: Sequence[Buffer], outputs: Sequence[Buffer]) -> _Graph:
        inputs, places = self._views("in", given), [self._views(place, outputs) for place in self._places]
        made = self._views("made", outputs) if self._options.is_ahead else []

        def work() -> None:
            on_device = [each.to(self._device, non_blocking=True) for each in inputs]
            for place, value in zip(made or places[0], self._call(key, *on_device), strict=True):
                place.copy_(value, non_blocking=True)

        return _Graph(work, work, inputs, made, places)

    def _replay(self, graph: _Graph) -> None:
        graph.replay()
        for place, value in zip(graph.outputs[self._place], graph.made):  # noqa: B905 - empty unless outputs are copied
            place.copy_(value, non_blocking=True)
        done = self._done[self._place]
        if done is not None:
            done.record()

    def _capture_all(self, stream: torch.cuda.Stream) -> None:
        with compile_in_parallel(min(num_cores(), MAX_COMPILERS)), self._capturing():
            stream.wait_stream(torch.cuda.current_stream(stream.device))
            with torch.cuda.stream(stream):
                for graph in self._graphs.values():
                    graph.work()
        for key, graph in self._graphs.items():
            with self._capturing():
                replay = capture(graph.work, stream, self._options.pool)
            self._graphs[key] = replace(graph, replay=replay)

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        """Hold the lock of captures, and apply the settings of this kind of call."""
        with one_capture, ExitStack() as settings:
            if self._options.own_kernels:
                for setting in _without_plans():
                    settings.enter_context(setting)
            yield


class _Launched:
    """A call that has been launched. `wait` copies its outputs, because a later call will overwrite them."""

    def __init__(self, outputs: Sequence[Tensor], done: torch.cuda.Event | None) -> None:
        self._outputs, self._done = outputs, done
        self._copies: list[np.ndarray] | None = None

    def wait(self) -> list[np.ndarray]:
        """Wait until the call has ended, and return its outputs."""
        if self._copies is None:
            if self._done is not None:
                self._done.synchronize()
            self._copies = [copied(output.numpy()) for output in self._outputs]
        return self._copies


@dataclass(frozen=True)
class _Graph:
    work: Callable[[], None]
    replay: Callable[[], None]  # the work; captured on a GPU
    inputs: list[Tensor]
    made: list[Tensor]  # outputs on the device; empty unless they are copied after the graph
    outputs: list[list[Tensor]]  # by place


def _without_plans() -> tuple[AbstractContextManager[Any], ...]:
    """Return global settings that disable cuDNN, which took 8 of the 19 seconds of a start (H200, 2026-11)."""
    own = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return torch.backends.cudnn.flags(enabled=False), sdpa_kernel(own)
