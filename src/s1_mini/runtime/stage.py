"""The interface between the network of a stage and its runner.

A stage holds the state of its slots in tensors that are allocated once and changed in place. A call that raises must
not have changed anything, so that each slot can be retried alone. A slot's output does not depend on the other slots,
except for rounding on a GPU without batch invariance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from s1_mini.core.messages import Begin, Prefill, Saved, StepResult
from s1_mini.runtime.compiled import Compilable

Pending = Callable[[], StepResult]  # waits for a launched step


class Stage:
    """One stage of a family on one device, used by one thread. Without graphs by default."""

    device: torch.device
    is_overlapped: bool  # whether a step is only launched, so that the next can be launched before its result is read

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the graphs on a GPU. Called once, before all other methods."""
        if self.device.type == "cuda":
            self.make_graphs()

    def make_graphs(self) -> None:
        """Capture the repeated calls (default: none). On a CPU, in tests, they run without being captured."""

    def begin(self, begins: Sequence[Begin]) -> None:
        """Begin units of work in their slots."""
        raise NotImplementedError

    def drop(self, slots: Sequence[int]) -> None:
        """Cancel the units in these slots; called only for remote stages."""

    def prefill(self, parts: Sequence[Prefill]) -> None:
        """Prefill positions of the units in these slots."""

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Launch one step of the units in `slots`, all of one shape class; other slots are unchanged."""
        raise NotImplementedError

    def save(self, slot: int, positions: int) -> Saved:
        """Copy the first positions of a slot."""
        raise NotImplementedError

    def load(self, slot: int, saved: Saved) -> None:
        """Load saved positions into a slot, as if they had just been computed."""
        raise NotImplementedError

    def compilable(self) -> Compilable | None:
        """Return the step that numba can compile on a CPU, if any."""
        return None

    def close(self) -> None:
        """Release resources other than memory. Called once, by the thread that used the stage."""


def whole_units(wait: Callable[[], Sequence[Any]], counts: list[int]) -> Pending:
    """Return the pending step of a call in which every unit finishes.

    `wait` returns values [n, …] and whether each row is finite [n]. Row i has `counts[i]` valid items; rows beyond
    `counts` are padding.
    """

    def result() -> StepResult:
        values, finite = wait()
        rows = len(counts)
        return StepResult(list(values[:rows]), counts, [True] * rows, finite[:rows].tolist())

    return result


def made(waves: list[np.ndarray]) -> Callable[[], Sequence[Any]]:
    return lambda: (waves, np.array([np.isfinite(wave).all() for wave in waves]))
