"""The base class of all codec stages, which turn chunks of items into audio.

Shapes: n slots of a call, T samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs, Wait
from s1_mini.runtime.stage import Pending, Stage, made, whole_units

ROWS = (1, 2, 4, 8, 16, 32, 64)  # numbers of slots of captured calls; the smallest call that fits is launched


def rows_of(device: torch.device, slots: int) -> tuple[int, ...]:
    """Return the numbers of slots in captured calls; on a CPU only 1, so that slots cannot affect each other."""
    return tuple(sorted({min(rows, slots) for rows in ROWS})) if device.type == "cuda" else (1,)


Graphs = StepGraphs[tuple[int, int]]  # key: number of slots, chunk size


class ChunkStage(Stage):
    """A codec stage, which computes several chunks in one captured call on a GPU.

    On a CPU, it computes chunks one by one, so that no result depends on other chunks.
    """

    def __init__(self, device: torch.device, policy: Chunks, *, number: int, rate: int) -> None:
        """`number`, the stage's index in its chain, chooses its GPU stream; an item becomes `rate` samples."""
        self.device, self._policy, self._number, self._rate = device, policy, number, rate
        self.is_overlapped = device.type == "cuda"
        self._begun: dict[int, Begin] = {}
        self._graphs: Graphs | None = None

    def _capture(
        self,
        call: Callable[[Tensor, Tensor], Tensor],
        inputs: Callable[[tuple[int, int]], Sequence[Buffer]],
        *,
        own_kernels: bool,
    ) -> None:
        """Capture `call`, which has two inputs and returns audio [n, T], for all numbers of slots and chunk sizes."""

        def checked(_: tuple[int, int], items: Tensor, rows: Tensor) -> list[Tensor]:
            sound = call(items, rows)
            return [sound, sound.isfinite().all(-1)]

        options = GraphOptions.of_stage(self.device, self._number)
        self._graphs = StepGraphs(
            checked,
            self._policy.calls,
            inputs,
            lambda key: [Buffer((key[0], key[1] * self._rate), torch.float32), Buffer((key[0],), torch.bool)],
            device=self.device,
            options=replace(
                options, is_beside=True, is_staged=True, is_ahead=True, sleeps=True, own_kernels=own_kernels
            ),
        )

    def begin(self, begins: Sequence[Begin]) -> None:
        self._begun |= {begin.slot: begin for begin in begins}

    def step(self, slots: Sequence[int], size: int) -> Pending:
        begun = [self._begun[slot] for slot in slots]
        counts = [begin.consumes * self._rate for begin in begun]
        if self._graphs is not None:
            return whole_units(self._launch(self._graphs, begun, size), counts)
        return whole_units(made([self._alone(begin) for begin in begun]), counts)

    def _launch(self, graphs: Graphs, begun: list[Begin], size: int) -> Wait:
        raise NotImplementedError

    def _alone(self, begin: Begin) -> np.ndarray:
        raise NotImplementedError
