"""A vocoder as a stage: chunks of frames in, with what is before and behind them; sound out. A slot remembers nothing.

What makes the frames ready, such as a post-net, may stand before it and looks at frames to either side, too.
Shapes: n units of a call, F frames, M mel bins, T samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.hifigan.model import HifiGan
from s1_mini.codecs.hifigan.window import Edges
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs
from s1_mini.runtime.rows import fit
from s1_mini.runtime.stage import Pending, SimpleStage, made, whole_units

ROWS = (1, 2, 4, 8, 16, 32, 64)  # units of the captured calls: a call runs in the smallest that holds it


class Front(Protocol):
    """What stands before the vocoder."""

    reach: int  # frames to either side that one of its frames depends on

    def __call__(self, frames: Tensor, start: int, edges: Edges) -> Tensor:
        """Return a window, whose first frame is `start`, less `reach` frames at both ends."""


def context_of(vocoder: HifiGan, front: Front | None = None) -> int:
    """Return the frames before and behind a chunk that its samples may depend on."""
    return vocoder.reach + (front.reach if front else 0)


class Vocoder(SimpleStage):
    """Makes sound of windows."""

    def __init__(self, vocoder: HifiGan, policy: Chunks, *, number: int, front: Front | None = None) -> None:
        """Take both as they lie in memory; `number` is the stage's in its chain, for its stream on a GPU."""
        self.device, self._vocoder, self._front = vocoder.device, vocoder, front
        self._policy, self._number = policy, number
        self._context = context_of(vocoder, front)
        self.launches_ahead = self.device.type == "cuda"
        self._begun: dict[int, Begin] = {}
        self._graphs: StepGraphs[tuple[int, int]] | None = None

    @torch.inference_mode()
    def capture(self) -> None:
        if self.device.type == "cuda":
            self.make_graphs()

    def make_graphs(self) -> None:
        """Make the graphs; on a CPU (in tests) their calls run uncaptured."""
        policy, config = self._policy, self._vocoder.config
        around = 2 * self._context

        def call(_: tuple[int, int], frames: Tensor, edges: Tensor) -> list[Tensor]:
            sound = self._speak(frames, Edges(edges[0], edges[1], axis=self._vocoder.axis))
            return [sound, sound.isfinite().all(-1)]

        options = GraphOptions.of_stage(self.device, self._number)
        self._graphs = StepGraphs(
            call,
            policy.calls,
            lambda key: [Buffer((key[0], key[1] + around, config.num_bins), torch.float32), Buffer((2, key[0]))],
            lambda key: [
                Buffer((key[0], key[1] * config.samples_per_frame), torch.float32),
                Buffer((key[0],), torch.bool),
            ],
            device=self.device,
            options=replace(options, is_beside=True, sleeps=True, own_kernels=True),
        )

    def begin(self, begins: Sequence[Begin]) -> None:
        self._begun |= {begin.slot: begin for begin in begins}

    def step(self, slots: Sequence[int], size: int) -> Pending:
        begun = [self._begun[slot] for slot in slots]
        counts = [begin.consumes * self._vocoder.config.samples_per_frame for begin in begun]
        if self._graphs is not None:
            n = fit(self._policy.rows, len(begun))
            windows = np.zeros((n, size + 2 * self._context, self._vocoder.config.num_bins), np.float32)
            edges = np.zeros((2, n), np.int64)
            for at, begin in enumerate(begun):
                edges[:, at] = self._fill(windows[at], begin)
            return whole_units(self._graphs.launch((n, size), windows, edges), counts)
        return whole_units(made([self._alone(begin) for begin in begun]), counts)

    def _fill(self, window: np.ndarray, begin: Begin) -> tuple[int, int]:
        """Put a unit's frames into a window of zeros; tell where they begin and end, from the first new one on."""
        first = self._context - begin.context
        window[first : first + len(begin.inputs)] = begin.inputs
        return -begin.context, len(begin.inputs) - begin.context

    def _alone(self, begin: Begin) -> np.ndarray:
        """Make the sound of one unit: of several, a CPU gives other last bits."""
        window = np.zeros((begin.consumes + 2 * self._context, self._vocoder.config.num_bins), np.float32)
        edges = Edges(*self._fill(window, begin), axis=self._vocoder.axis)
        wave: np.ndarray = self._speak(torch.from_numpy(window).unsqueeze(0).to(self.device), edges)[0].cpu().numpy()
        return wave

    def _speak(self, frames: Tensor, edges: Edges) -> Tensor:
        """Make the sound [n, T] of windows [n, F, M]."""
        x = frames.to(self._vocoder.dtype)
        x = x.transpose(1, 2) if self._vocoder.axis == 2 else x
        if self._front is not None:
            x = self._front(x, -self._context, edges)
        sound: Tensor = self._vocoder(x, edges)
        return sound.float()
