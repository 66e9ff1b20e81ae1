"""Many files through the codec in calls of one shape: S lanes, each with the next chunk of a file of its own.

A lane carries its file's state from call to call, and takes the next file when one is over. So every lane works until
the files run out, whatever their lengths; memory is made once, and a GPU has one graph. The result for a file depends
neither on its neighbours nor on its place in the order.
Shapes: S lanes, K codebooks, F frames and T samples of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.stream_state import StreamChunk
from s1_mini.codecs.stream_state import StreamState
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.graphs import capture, one_capture

Numbered = tuple[int, np.ndarray]
Format = tuple[tuple[int, ...], torch.dtype]  # of a chunk; time is the last axis


@dataclass
class _File:
    """A file in a lane, and what is known of its result."""

    number: int
    content: np.ndarray
    result: np.ndarray
    begun: int = 0  # steps that were put into calls


@dataclass
class _Call:
    """The host's side of a call: pinned memory where the device is a GPU."""

    inputs: list[Tensor]
    output: Tensor
    done: torch.cuda.Event | None
    # Of each lane that has a file: its number, the file, and where its part of the file's result begins.
    parts: list[tuple[int, _File, int]] = field(default_factory=list)

    def wait(self) -> None:
        if self.done is not None:
            self.done.synchronize()


class Lanes:
    """S lanes of one direction; `run` may be called again and again, one after the other."""

    def __init__(
        self,
        codec: Encodec,
        *,
        lanes: int,
        frames: int,
        given: Format,
        made: Format,
    ) -> None:
        """Allocate lanes for chunks of `frames` frames, of the format `given`, and results of the format `made`.

        Raises `ConfigurationError` for chunks that are too short to begin a file.
        """
        if lanes < 1 or frames < codec.config.first_frames:
            raise ConfigurationError(
                f"{lanes} lanes of {frames} frames are not possible: use at least one lane and at least "
                f"{codec.config.first_frames} frames, because a file's first samples depend on these"
            )
        self.lanes, self._frames, self._codec, self._given = lanes, frames, codec, given
        self._state, self.device = StreamState(), codec.device
        shapes = [((lanes, *given[0]), given[1]), ((lanes,), torch.bool), ((lanes,), torch.int64)]
        self._inputs = [torch.zeros(shape, dtype=dtype, device=self.device) for shape, dtype in shapes]
        self._output = torch.zeros((lanes, *made[0]), dtype=made[1], device=self.device)
        # Of two calls one is filled and read while the device works on the other.
        self._calls = [self._make_call() for _ in range(2)]
        self._num_calls = 0
        self._stream: torch.cuda.Stream | None = None
        self._work: Callable[[], None] = self._compute

    @torch.inference_mode()
    def capture(self, *, tunes: bool = False) -> None:
        """Capture the graph, on a GPU; once, before the first file.

        If it `tunes`, cuDNN tries its ways of each convolution and keeps the fastest: some seconds, and their sums may
        differ in the last bits from one time to the next.
        """
        if self.device.type != "cuda":
            return
        self._inputs[2].fill_(self._given[0][-1])
        self._stream = torch.cuda.Stream(self.device)
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = tunes or before
        try:
            with one_capture:
                self._work = capture(self._compute, self._stream, torch.cuda.graph_pool_handle())
        finally:
            torch.backends.cudnn.benchmark = before

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        """Return the results of a chunk of each lane."""
        raise NotImplementedError

    @torch.inference_mode()
    def run(self, files: Iterable[np.ndarray]) -> Iterator[Numbered]:
        """Yield each file's number and result as soon as it is complete; files are read when a lane is free.

        Raises `ValueError` for a file of another shape.
        """
        waiting = enumerate(files)
        at: list[_File | None] = [None] * self.lanes
        last: _Call | None = None
        for number in count():
            call = self._calls[number % 2]
            call.wait()  # of a run that was given up
            empty = self._fill(call, at, waiting)
            if call.parts:
                self._launch(call)
            yield from ((file.number, file.result) for file in empty)
            if last is not None:
                yield from self._collect(last)
            if not call.parts:
                return
            last = call

    def all(self, files: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the results of all files in their order; the longest are begun first, so that lanes end together."""
        order = sorted(range(len(files)), key=lambda number: -files[number].shape[-1])
        results = {order[at]: result for at, result in self.run(files[number] for number in order)}
        return [results[number] for number in range(len(files))]

    @property
    def frames_computed(self) -> int:
        """Frames of all calls so far, with those of lanes that had no file."""
        return self._num_calls * self.lanes * self._frames

    @property
    def num_bytes(self) -> int:
        return self._state.num_bytes + sum(each.nbytes for each in (*self._inputs, self._output))

    def _make_call(self) -> _Call:
        is_gpu = self.device.type == "cuda"
        host = [torch.zeros(each.shape, dtype=each.dtype, pin_memory=is_gpu) for each in (*self._inputs, self._output)]
        return _Call(host[:-1], host[-1], torch.cuda.Event(blocking=True) if is_gpu else None)

    def _compute(self) -> None:
        x, fresh, lengths = self._inputs
        chunk = StreamChunk(self._state, self.lanes, fresh, lengths)
        self._output.copy_(self.compute(x, chunk))
        chunk.commit()

    def _fill(self, call: _Call, at: list[_File | None], waiting: Iterator[Numbered]) -> list[_File]:
        """Put the next chunk of each lane's file into a call; return the files that are empty."""
        x, fresh, lengths = (each.numpy() for each in call.inputs)
        steps, empty = x.shape[-1], []
        call.parts = []
        fresh[:], lengths[:] = True, steps  # for lanes without a file
        for lane in range(self.lanes):
            file = at[lane]
            while file is None and (following := next(waiting, None)) is not None:
                file = self._open(*following)
                if not file.content.shape[-1]:
                    empty.append(file)
                    file = None
            if file is None:
                continue
            taken = min(steps, file.content.shape[-1] - file.begun)
            x[lane, ..., :taken] = file.content[..., file.begun : file.begun + taken]
            fresh[lane], lengths[lane] = file.begun == 0, taken
            call.parts.append((lane, file, file.begun // steps * self._output.shape[-1]))
            file.begun += taken
            at[lane] = file if file.begun < file.content.shape[-1] else None
        return empty

    def _open(self, number: int, content: np.ndarray) -> _File:
        *shape, steps = self._given[0]
        if content.ndim != len(shape) + 1 or list(content.shape[:-1]) != shape:
            wanted = ", ".join(map(str, (*shape, "length")))
            raise ValueError(f"file {number} has shape {list(content.shape)}; expected [{wanted}]")
        frames = -(-content.shape[-1] * self._frames // steps)
        *shape, made = self._output.shape[1:]
        result = np.empty((*shape, frames * made // self._frames), self._calls[0].output.numpy().dtype)
        return _File(number, content, result)

    def _launch(self, call: _Call) -> None:
        self._num_calls += 1
        with torch.cuda.stream(self._stream):  # which does nothing where there is none
            for device, host in zip(self._inputs, call.inputs, strict=True):
                device.copy_(host, non_blocking=True)
            self._work()
            call.output.copy_(self._output, non_blocking=True)
            if call.done is not None:
                call.done.record()

    def _collect(self, call: _Call) -> Iterator[Numbered]:
        """Read the results of a call; yield those of files that are over."""
        call.wait()
        made = call.output.numpy()
        for lane, file, start in call.parts:
            part = file.result[..., start : start + made.shape[-1]]
            part[...] = made[lane, ..., : part.shape[-1]]
            if start + part.shape[-1] == file.result.shape[-1]:
                yield file.number, file.result


class EncodeLanes(Lanes):
    """Waves [samples] in float32 to codes [K, frames] in int64."""

    def __init__(self, codec: Encodec, *, lanes: int, frames: int, codebooks: int) -> None:
        """Encode `frames` frames of each lane at a time, with the first `codebooks`."""
        assert codec.encodes, "this codec was loaded for decoding only"
        given = ((frames * codec.samples_per_frame,), torch.float32)
        super().__init__(codec, lanes=lanes, frames=frames, given=given, made=((codebooks, frames), torch.int64))
        self._codebooks = codebooks

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        return self._codec.quantize(self._codec.latents(x, chunk), self._codebooks)


class DecodeLanes(Lanes):
    """Codes [K, frames] to waves [samples] in float32."""

    def __init__(self, codec: Encodec, *, lanes: int, frames: int, codebooks: int) -> None:
        """Decode `frames` frames of each lane at a time, of the first `codebooks`."""
        made = ((frames * codec.samples_per_frame,), torch.float32)
        super().__init__(codec, lanes=lanes, frames=frames, given=((codebooks, frames), torch.int64), made=made)

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        return self._codec.decode(x, chunk)
