"""What a stage can have compiled before it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Compilable:
    """A step that one compiled function can make; until then, and wherever that fails, torch makes it."""

    what: str  # as people call it
    module: str  # that has a `compile_for(formats)`; it imports no torch
    formats: Sequence[str]  # of the weights
    use: Callable[[], None]  # loads it, compiles it if it is not kept, and checks it; for work that begins after that


class CompiledSlots:
    """The slots whose steps a compiled function makes, from first to last: those that began since it is used."""

    def __init__(self) -> None:
        self._step: Callable[[Sequence[int]], np.ndarray] | None = None
        self._slots: set[int] = set()

    def use(self, step: Callable[[Sequence[int]], np.ndarray]) -> None:
        """Have `step`, which makes an array [n, …] of n slots, make those that begin after this."""
        self._step = step

    def begin(self, slot: int) -> None:
        """Let a slot begin with what there is."""
        (self._slots.add if self._step else self._slots.discard)(slot)

    def others(self, slots: Sequence[int]) -> list[int]:
        """Give those of `slots` that torch steps."""
        return [slot for slot in slots if slot not in self._slots]

    def fill(self, slots: Sequence[int], made: np.ndarray) -> None:
        """Step those of `slots` that are compiled, into their rows of `made`."""
        compiled = [slot for slot in slots if slot in self._slots]
        if compiled:
            assert self._step is not None
            made[compiled] = self._step(compiled)
