"""A vocoder as a stage: turns chunks of frames, with the frames around them, into audio. Slots have no state.

Another network, such as a post-net, may run before the vocoder; the context then covers both.
Shapes: n units of a call, F frames, M mel bins, T samples.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.hifigan.model import Edges, HifiGan
from s1_mini.codecs.stage import ChunkStage, Graphs
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.runtime.graphs import Buffer, Wait
from s1_mini.runtime.rows import fit


class Front(Protocol):
    """A network in front of the vocoder."""

    reach: int  # number of frames before and after a frame that affect its output

    def __call__(self, frames: Tensor, start: int, edges: Edges) -> Tensor:
        """Return the output for a window whose first frame is `start`, except the `reach` frames at each end."""


def context_of(vocoder: HifiGan, front: Front | None = None) -> int:
    """Return the number of frames before and after a chunk on which its samples depend."""
    return vocoder.reach + (front.reach if front else 0)


class Vocoder(ChunkStage):
    """The stage of a vocoder and, if given, of a network before it."""

    def __init__(self, vocoder: HifiGan, policy: Chunks, *, number: int, front: Front | None = None) -> None:
        """`vocoder` and `front` must have the same layout; `number`, the stage's index, chooses its GPU stream."""
        super().__init__(vocoder.device, policy, number=number, rate=vocoder.config.samples_per_frame)
        self._vocoder, self._front, self._context = vocoder, front, context_of(vocoder, front)

    def make_graphs(self) -> None:
        def call(frames: Tensor, edges: Tensor) -> Tensor:
            return self._speak(frames, Edges(edges[0], edges[1], axis=self._vocoder.axis))

        around, bins = 2 * self._context, self._vocoder.config.num_bins
        self._capture(
            call,
            lambda key: [Buffer((key[0], key[1] + around, bins), torch.float32), Buffer((2, key[0]))],
            own_kernels=True,
        )

    def _launch(self, graphs: Graphs, begun: list[Begin], size: int) -> Wait:
        n = fit(self._policy.rows, len(begun))
        windows = np.zeros((n, size + 2 * self._context, self._vocoder.config.num_bins), np.float32)
        edges = np.zeros((2, n), np.int64)
        for at, begin in enumerate(begun):
            edges[:, at] = self._fill(windows[at], begin)
        return graphs.launch((n, size), windows, edges)

    def _fill(self, window: np.ndarray, begin: Begin) -> tuple[int, int]:
        """Copy a unit's frames into a window of zeros; return `first` and `last` of their `Edges`."""
        first = self._context - begin.context
        window[first : first + len(begin.inputs)] = begin.inputs
        return -begin.context, len(begin.inputs) - begin.context

    def _alone(self, begin: Begin) -> np.ndarray:
        window = np.zeros((begin.consumes + 2 * self._context, self._vocoder.config.num_bins), np.float32)
        edges = Edges(*self._fill(window, begin), axis=self._vocoder.axis)
        wave: np.ndarray = self._speak(torch.from_numpy(window).unsqueeze(0).to(self.device), edges)[0].cpu().numpy()
        return wave

    def _speak(self, frames: Tensor, edges: Edges) -> Tensor:
        """Return the audio [n, T] of windows [n, F, M]."""
        x = frames.to(self._vocoder.dtype)
        x = x.transpose(1, 2) if self._vocoder.axis == 2 else x
        if self._front is not None:
            x = self._front(x, -self._context, edges)
        sound: Tensor = self._vocoder(x, edges)
        return sound.float()
