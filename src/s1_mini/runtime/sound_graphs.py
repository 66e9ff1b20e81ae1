"""The codec's decoding as captured CUDA graphs for some sizes of batch and chunk, all made before the first request.

A graph takes codes, rows and beginnings from pinned memory and leaves samples in pinned memory; what the rows remember
it gathers and puts back by itself. All run on a stream of their own, beside the frames, one at a time: they share their
inputs, their outputs and their memory, which they must not share with graphs of another stream.
A chunk that ends its piece may be filled up to the next size: the codec is causal, and its row is not used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from s1_mini.codecs.base import Codec
from s1_mini.runtime.capture import capture, graph_streams, one_capture

ROWS = (1, 2, 4, 8, 16, 32, 64)
MAX_FRAMES = 400  # of all rows of one graph: beyond, a GPU is full, and first sounds would wait

# Codes [n, K, F], rows [n] and beginnings [n], all on the device, to samples [n, T].
Push = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class _Graph:
    replay: Callable[[], None]
    codes: np.ndarray  # [n, F, K]
    rows: np.ndarray  # [2, n]: which, and whether it begins
    samples: np.ndarray  # [n, T]
    finite: np.ndarray  # [n] bool


class SoundGraphs:
    """Decodes chunks of several rows in one launch. Safe to use from one thread at a time."""

    def __init__(self, codec: Codec, push: Push, *, rows: int, sizes: Sequence[int], device: torch.device) -> None:
        """Capture `push` for chunks of `sizes` frames; row number `rows` is for what fills up a batch.

        On a CPU nothing is captured: the same is done step by step, to be looked at.
        """
        self._codec, self._push, self._scratch, self._device = codec, push, rows, device
        self.sizes = sorted(set(sizes))
        self._rows = sorted({min(n, rows) for n in ROWS})
        self._captures = device.type == "cuda"
        # Pinned, and shared by all graphs since one runs at a time.
        most, spf = max(MAX_FRAMES, self.sizes[-1]), codec.samples_per_frame
        self._codes = torch.zeros(most * codec.num_codebooks, dtype=torch.int64, pin_memory=self._captures)
        self._chosen = torch.zeros(2 * self._rows[-1], dtype=torch.int64, pin_memory=self._captures)
        self._samples = torch.zeros(most * spf, pin_memory=self._captures)
        self._finite = torch.zeros(self._rows[-1], dtype=torch.bool, pin_memory=self._captures)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        wanted = [(n, size) for size in self.sizes for n in self._rows if n == 1 or n * size <= MAX_FRAMES]
        if self._captures:
            self._stream = graph_streams(device).sound
            self._done = torch.cuda.Event(blocking=True)
            self._pool = torch.cuda.graph_pool_handle()
        for n, size in sorted(wanted, key=lambda pair: -pair[0] * pair[1]):  # the others find room in its pool
            self._graphs[n, size] = self._prepare(n, size)

    def __len__(self) -> int:
        return len(self._graphs)

    def fit(self, frames: int) -> int:
        """Give the size that a chunk of `frames` frames is decoded in."""
        return next(size for size in self.sizes if size >= frames)

    def most_rows(self, size: int) -> int:
        """Give how many chunks of this size fit one graph."""
        return max(n for n, other in self._graphs if other == size)

    def decode(
        self, codes: Sequence[np.ndarray], rows: Sequence[int], fresh: Sequence[bool]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decode a chunk [F, K] of each of `rows`, from the beginning those that are `fresh`.

        Gives samples float32 [n, T] and which rows are finite. T may be more than a chunk's own: what is beyond means
        nothing. A chunk that is shorter than the size it is decoded in must end its row's stream.
        """
        size = self.fit(max(len(each) for each in codes))
        graph = self._graphs[next(n for n in self._rows if n >= len(codes)), size]
        graph.codes[:] = 0
        for index, each in enumerate(codes):
            graph.codes[index, : len(each)] = each
        graph.rows[0], graph.rows[1] = self._scratch, 1
        graph.rows[0, : len(rows)], graph.rows[1, : len(rows)] = rows, fresh
        if self._captures:
            with torch.cuda.stream(self._stream):
                graph.replay()
            self._done.synchronize()
        else:
            graph.replay()
        return graph.samples[: len(rows)].copy(), graph.finite[: len(rows)].copy()

    def _prepare(self, n: int, size: int) -> _Graph:
        num_books, length = self._codec.num_codebooks, size * self._codec.samples_per_frame
        codes = self._codes[: n * size * num_books].view(n, size, num_books)
        chosen = self._chosen[: 2 * n].view(2, n)
        samples, finite = self._samples[: n * length].view(n, length), self._finite[:n]
        chosen[0], chosen[1] = self._scratch, 1

        def chunk() -> None:
            rows = chosen.to(self._device, non_blocking=True)
            inputs = codes.to(self._device, non_blocking=True).transpose(1, 2)
            sound = self._push(inputs, rows[0], rows[1].bool()).float()
            samples.copy_(sound, non_blocking=True)
            finite.copy_(sound.isfinite().all(-1), non_blocking=True)

        run = self._capture(chunk) if self._captures else chunk
        return _Graph(run, codes.numpy(), chosen.numpy(), samples.numpy(), finite.numpy())

    def _capture(self, chunk: Callable[[], None]) -> Callable[[], None]:
        # cuDNN plans a convolution or attention anew for every size: 8 of the 19 seconds of a start (H200, 2026-11).
        own = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        with one_capture, torch.backends.cudnn.flags(enabled=False), sdpa_kernel(own):  # these are of all threads
            return capture(chunk, self._stream, self._pool, self._done)
