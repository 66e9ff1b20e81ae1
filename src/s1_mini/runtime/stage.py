"""What the network of a stage must offer to its runner.

It holds the state of some slots, all tensors made once, and changes them in place. A call that raises has changed
nothing, so that each slot can be tried alone. What a slot gives does not depend on who else is in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from s1_mini.core.messages import Begin, Prefill, Saved, StepResult
from s1_mini.runtime.compiled import Compilable

Pending = Callable[[], StepResult]  # waits for a step that was launched


class Stage(Protocol):
    """One stage of a family on one device; used by one thread, if it does not say otherwise."""

    device: torch.device
    is_overlapped: bool  # whether a step is only launched, so that the next can follow before it is looked at

    def capture(self) -> None:
        """Make the graphs of what comes again and again, where the device has such; once, before all else."""

    def begin(self, begins: Sequence[Begin]) -> None:
        """Let units of work begin in their slots."""

    def drop(self, slots: Sequence[int]) -> None:
        """Give up the units in these slots; asked only where the policy says that the work is done elsewhere."""

    def prefill(self, parts: Sequence[Prefill]) -> None:
        """Read positions of the units that these slots are at."""

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Make one step of the units in `slots`, all of one shape class; the others rest."""

    def save(self, slot: int, positions: int) -> Saved:
        """Copy what a slot holds of its first positions."""

    def load(self, slot: int, saved: Saved) -> None:
        """Put saved positions into a slot, as if they had just been read."""

    def compilable(self) -> Compilable | None:
        """Tell what of it numba can compile, on a CPU."""

    def close(self) -> None:
        """Let go of what is not memory; once, after all else, by the thread that did it."""


class SimpleStage(Stage):
    """A stage that captures, reads and keeps nothing, but for what it says itself."""

    def capture(self) -> None:
        """There is nothing to capture."""

    def prefill(self, parts: Sequence[Prefill]) -> None:
        """There is nothing to read."""

    def drop(self, slots: Sequence[int]) -> None:
        """What is in a slot is simply no longer stepped."""

    def save(self, slot: int, positions: int) -> Saved:
        """There is nothing to save."""
        raise NotImplementedError

    def load(self, slot: int, saved: Saved) -> None:
        """There is nothing to load."""
        raise NotImplementedError

    def compilable(self) -> Compilable | None:
        """There is nothing to compile."""
        return None

    def close(self) -> None:
        """There is nothing but memory."""


def whole_units(wait: Callable[[], Sequence[Any]], counts: list[int]) -> Pending:
    """Give what waits for a call that makes whole units: their values [n, …], and whether all of each are finite [n].

    Of each the first `counts` items mean anything; n may be larger than there are counts.
    """

    def result() -> StepResult:
        values, finite = wait()
        rows = len(counts)
        return StepResult(list(values[:rows]), counts, [True] * rows, finite[:rows].tolist())

    return result


def made(waves: list[np.ndarray]) -> Callable[[], Sequence[Any]]:
    """Give the outputs of a call that is over."""
    return lambda: (waves, np.array([np.isfinite(wave).all() for wave in waves]))
