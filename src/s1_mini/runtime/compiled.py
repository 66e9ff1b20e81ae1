"""Steps of a stage that numba can compile on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Step = Callable[[Sequence[int]], np.ndarray]  # called with n slots; returns an array [n, …]
FORMATS = {torch.float32, torch.bfloat16, torch.int8}  # weight formats; `kernels/weight.py` packs them


@dataclass(frozen=True)
class Compilable:
    """A step that one function can compute. Until that is compiled, and if compilation fails, torch computes it."""

    what: str  # title
    module: str  # has `compile_for(formats)`; imports no torch
    formats: Sequence[str]  # weight formats
    use: Callable[[], None]  # loads or compiles the function, and checks it; later utterances use it


class CompilableModel(Protocol):
    """The properties of a model that determine whether its steps can be compiled."""

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype  # dtype of keys and values


def can_compile(model: CompilableModel, weights: Iterable[Tensor]) -> bool:
    """Return whether compiled steps support the device and the number formats of a model and its weights."""
    is_wide = model.dtype == model.kv_dtype == torch.float32
    return model.device.type == "cpu" and is_wide and {weight.dtype for weight in weights} <= FORMATS


class CompiledSlots:
    """The slots that a compiled function steps: those whose utterances began after it was activated."""

    def __init__(self) -> None:
        self._step: Step | None = None
        self._slots: set[int] = set()

    def compilable(
        self, what: str, family: ModuleType, model: CompilableModel, make: Callable[[Any], Step]
    ) -> Compilable:
        """Return the function to compile; `make` returns the step for given weights.

        A family's module has `MODULE`, `gather(model)`, which returns weights, `formats_of(weights)`, and
        `check(model, weights)`, which raises `RuntimeError` if compiled steps differ from torch's.
        """
        weights = family.gather(model)

        def use() -> None:
            family.check(model, weights)
            self._step = make(weights)

        return Compilable(what, family.MODULE, family.formats_of(weights), use)

    def begin(self, slot: int) -> None:
        """Assign a slot that begins an utterance to the compiled step, if there is one."""
        (self._slots.add if self._step else self._slots.discard)(slot)

    def others(self, slots: Sequence[int]) -> list[int]:
        """Return the `slots` that torch steps."""
        return [slot for slot in slots if slot not in self._slots]

    def fill(self, slots: Sequence[int], made: np.ndarray) -> None:
        """Step the compiled `slots`, writing to their rows of `made`."""
        compiled = [slot for slot in slots if slot in self._slots]
        if compiled:
            assert self._step is not None
            made[compiled] = self._step(compiled)
