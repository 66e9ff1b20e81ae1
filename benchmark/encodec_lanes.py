"""Process many files in calls of one shape: S lanes, each with the next chunk of one file.

A lane keeps the state of its file between calls, and begins another file when its file is complete. All lanes are
therefore busy until no file is left, whatever the lengths of the files. Memory is allocated once, and a GPU needs only
one graph. The result of a file depends neither on other files nor on the order of files.
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
Format = tuple[tuple[int, ...], torch.dtype]  # shape and dtype of a chunk; time is the last axis


@dataclass
class _File:
    """A file in a lane, and its result so far."""

    number: int
    content: np.ndarray
    result: np.ndarray
    begun: int = 0  # steps passed to calls so far


@dataclass
class _Call:
    """The buffers of a call on the host, in pinned memory if the device is a GPU."""

    inputs: list[Tensor]
    output: Tensor
    done: torch.cuda.Event | None
    # For each lane with a file: the lane's number, the file, and where this call's output begins in the file's result.
    parts: list[tuple[int, _File, int]] = field(default_factory=list)

    def wait(self) -> None:
        if self.done is not None:
            self.done.synchronize()


class Lanes:
    """The base class for encoding and decoding. `run` may be called repeatedly, but not concurrently."""

    def __init__(
        self,
        codec: Encodec,
        *,
        lanes: int,
        frames: int,
        inputs: Format,
        outputs: Format,
    ) -> None:
        """Allocate `lanes` lanes for chunks of `frames` frames with the formats `inputs` and `outputs`.

        Raises `ConfigurationError` if chunks are too short for the beginning of a file.
        """
        if lanes < 1 or frames < codec.config.first_frames:
            raise ConfigurationError(
                f"{lanes} lanes of {frames} frames are not possible: use at least one lane and at least "
                f"{codec.config.first_frames} frames, because a file's first samples depend on its first "
                f"{codec.config.first_frames} frames"
            )
        self.lanes, self._frames, self._codec, self._input_format = lanes, frames, codec, inputs
        self._state, self.device = StreamState(), codec.device
        shapes = [((lanes, *inputs[0]), inputs[1]), ((lanes,), torch.bool), ((lanes,), torch.int64)]
        self._inputs = [torch.zeros(shape, dtype=dtype, device=self.device) for shape, dtype in shapes]
        self._output = torch.zeros((lanes, *outputs[0]), dtype=outputs[1], device=self.device)
        # Two calls, so that the host can fill and read one of them while the device computes the other.
        self._calls = [self._make_call() for _ in range(2)]
        self._num_calls = 0
        self._stream: torch.cuda.Stream | None = None
        self._work: Callable[[], None] = self._compute

    @torch.inference_mode()
    def capture(self, *, tunes: bool = False) -> None:
        """Capture the graph on a GPU; call it once, before the first file.

        With `tunes`, cuDNN autotunes each convolution. This takes seconds, and the last bits of results may then differ
        from one process to the next.
        """
        if self.device.type != "cuda":
            return
        self._inputs[2].fill_(self._input_format[0][-1])
        self._stream = torch.cuda.Stream(self.device)
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = tunes or before
        try:
            with one_capture:
                self._work = capture(self._compute, self._stream, torch.cuda.graph_pool_handle())
        finally:
            torch.backends.cudnn.benchmark = before

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        """Return the output for x, one chunk of each lane."""
        raise NotImplementedError

    @torch.inference_mode()
    def run(self, files: Iterable[np.ndarray]) -> Iterator[Numbered]:
        """Yield each file's number and result once it is complete. The next file is read when a lane becomes free.

        Raises `ValueError` for a file with the wrong shape.
        """
        waiting = enumerate(files)
        at: list[_File | None] = [None] * self.lanes
        last: _Call | None = None
        for number in count():
            call = self._calls[number % 2]
            call.wait()  # an abandoned run may still use the buffers
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
        """Return the results of all files in order. The longest files start first, so that lanes finish together."""
        order = sorted(range(len(files)), key=lambda number: -files[number].shape[-1])
        results = {order[at]: result for at, result in self.run(files[number] for number in order)}
        return [results[number] for number in range(len(files))]

    @property
    def frames_computed(self) -> int:
        """Number of frames of all calls so far, including lanes without a file."""
        return self._num_calls * self.lanes * self._frames

    def _make_call(self) -> _Call:
        is_gpu = self.device.type == "cuda"
        host = [torch.zeros(each.shape, dtype=each.dtype, pin_memory=is_gpu) for each in (*self._inputs, self._output)]
        return _Call(host[:-1], host[-1], torch.cuda.Event(blocking=True) if is_gpu else None)

    def _compute(self) -> None:
        x, reset_mask, lengths = self._inputs
        chunk = StreamChunk(self._state, self.lanes, reset_mask, lengths)
        self._output.copy_(self.compute(x, chunk))
        chunk.commit()

    def _fill(self, call: _Call, at: list[_File | None], waiting: Iterator[Numbered]) -> list[_File]:
        """Put the next chunk of each lane's file into a call; return the files without content, which need no call."""
        x, reset_mask, lengths = (each.numpy() for each in call.inputs)
        steps, empty = x.shape[-1], []
        call.parts = []
        reset_mask[:], lengths[:] = True, steps  # values of lanes without a file
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
            reset_mask[lane], lengths[lane] = file.begun == 0, taken
            call.parts.append((lane, file, file.begun // steps * self._output.shape[-1]))
            file.begun += taken
            at[lane] = file if file.begun < file.content.shape[-1] else None
        return empty

    def _open(self, number: int, content: np.ndarray) -> _File:
        *shape, steps = self._input_format[0]
        if content.ndim != len(shape) + 1 or list(content.shape[:-1]) != shape:
            expected = ", ".join(map(str, (*shape, "length")))
            raise ValueError(f"file {number} has shape {list(content.shape)}; expected [{expected}]")
        frames = -(-content.shape[-1] * self._frames // steps)
        *shape, output_steps = self._output.shape[1:]
        result = np.empty((*shape, frames * output_steps // self._frames), self._calls[0].output.numpy().dtype)
        return _File(number, content, result)

    def _launch(self, call: _Call) -> None:
        self._num_calls += 1
        with torch.cuda.stream(self._stream):  # no effect on a CPU, where the stream is None
            for device, host in zip(self._inputs, call.inputs, strict=True):
                device.copy_(host, non_blocking=True)
            self._work()
            call.output.copy_(self._output, non_blocking=True)
            if call.done is not None:
                call.done.record()

    def _collect(self, call: _Call) -> Iterator[Numbered]:
        """Copy the output of a call to the files' results; yield the files that are now complete."""
        call.wait()
        output = call.output.numpy()
        for lane, file, start in call.parts:
            part = file.result[..., start : start + output.shape[-1]]
            part[...] = output[lane, ..., : part.shape[-1]]
            if start + part.shape[-1] == file.result.shape[-1]:
                yield file.number, file.result


class EncodeLanes(Lanes):
    """Encodes waves [samples] in float32 to codes [K, frames] in int64."""

    def __init__(self, codec: Encodec, *, lanes: int, frames: int, codebooks: int) -> None:
        """Encode `frames` frames per lane and call, with the first `codebooks` codebooks."""
        assert codec.encodes, "this codec was loaded for decoding only"
        inputs = ((frames * codec.samples_per_frame,), torch.float32)
        super().__init__(codec, lanes=lanes, frames=frames, inputs=inputs, outputs=((codebooks, frames), torch.int64))
        self._codebooks = codebooks

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        """Return the codes [S, K, F] of waves [S, T]."""
        return self._codec.quantize(self._codec.latents(x, chunk), self._codebooks)


class DecodeLanes(Lanes):
    """Decodes codes [K, frames] to waves [samples] in float32."""

    def __init__(self, codec: Encodec, *, lanes: int, frames: int, codebooks: int) -> None:
        """Decode `frames` frames per lane and call, with codes of the first `codebooks` codebooks."""
        outputs = ((frames * codec.samples_per_frame,), torch.float32)
        super().__init__(codec, lanes=lanes, frames=frames, inputs=((codebooks, frames), torch.int64), outputs=outputs)

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        """Return the waves [S, T] of codes [S, K, F]."""
        return self._codec.decode(x, chunk)
