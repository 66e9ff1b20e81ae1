"""The interface between the network of a stage and its runner.

A stage holds the state of its slots in tensors that are allocated once and changed in place. If a call raises an error,
it must not have changed anything, so that the runner can repeat it for each slot alone. The output of a slot does not
depend on other slots, except for rounding on a GPU without batch invariance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from s1_mini.core.messages import Begin, Feed, Prefill, Saved, StepResult
from s1_mini.runtime.compiled import Compilable

Pending = Callable[[], StepResult]  # waits for a launched step, and returns its result


class Stage:
    """One stage of a family on one device. Used by one thread, and by a second one that helps (`Threads.helps`)."""

    device: torch.device
    is_overlapped: bool  # whether `step` only launches work, so that the next step can be launched before it ends

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the graphs if the device is a GPU. Called once, before all other methods."""
        if self.device.type == "cuda":
            self.make_graphs()

    def make_graphs(self) -> None:
        """Capture the repeated calls; by default, there are none. In tests on a CPU, this sets them up uncaptured."""

    def begin(self, begins: Sequence[Begin]) -> None:
        """Begin units of work in their slots."""
        raise NotImplementedError

    def drop(self, slots: Sequence[int]) -> None:
        """Cancel the units in these slots. Called only for remote stages."""

    def prefill(self, parts: Sequence[Prefill]) -> None:
        """Prefill positions of the units in these slots."""

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Store text tokens of coming steps; called only if the family reads a text that is still being written."""
        raise NotImplementedError

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Launch one step of the units in `slots`, which all have the shape class `size`. Other slots do not change."""
        raise NotImplementedError

    def save(self, slot: int, positions: int) -> Saved:
        """Return a copy of the first positions of a slot."""
        raise NotImplementedError

    def load(self, slot: int, saved: Saved) -> None:
        """Load saved positions into the first positions of a slot."""
        raise NotImplementedError

    def compilable(self) -> Compilable | None:
        """Return the step that numba can compile on a CPU, if any."""
        return None

    def close(self) -> None:
        """Release resources other than memory. Called once, by the thread that has used the stage."""


def whole_units(wait: Callable[[], Sequence[Any]], counts: list[int]) -> Pending:
    """Return the pending result of a call in which every unit ends.

    `wait` returns values [n, …] and, for each row, whether all numbers are finite [n]. Row i has `counts[i]` valid
    items; rows beyond `counts` are padding.
    """

    def result() -> StepResult:
        values, finite = wait()
        rows = len(counts)
        return StepResult(list(values[:rows]), counts, [True] * rows, finite[:rows].tolist())

    return result


def made(waves: list[np.ndarray]) -> Callable[[], Sequence[Any]]:
    return lambda: (waves, np.array([np.isfinite(wave).all() for wave in waves]))
