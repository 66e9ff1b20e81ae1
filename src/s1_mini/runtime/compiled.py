"""Steps of a stage that numba can compile on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Step = Callable[[Sequence[int]], np.ndarray]  # called with n slots; returns an array [n, …]
FORMATS = {torch.float32, torch.bfloat16, torch.int8}  # weight formats; `kernels/weight.py` packs them


@dataclass(frozen=True)
class Compilable:
    """A step that numba can compile. Until it is compiled, and if compilation fails, torch computes the step."""

    what: str  # name of the step for logs and `/health`
    module: str  # module with the function and `compile_for(formats)`; it does not import torch
    formats: Sequence[str]  # what the module compiles for, such as the formats of the weights
    use: Callable[[], None]  # loads or compiles the function, checks it, and activates it for later utterances


def stepping(function: Callable[..., object], width: int, dtype: type, *arguments: Any) -> Step:
    """Return a step that calls a compiled `function` with slots, these arguments and an array [n, width] to fill."""

    def step(slots: Sequence[int]) -> np.ndarray:
        found: np.ndarray = np.zeros((len(slots), width), dtype)
        function(np.array(slots, np.int64), *arguments, found)
        return found

    return step


class CompilableModel(Protocol):
    """The properties of a model that decide whether its steps can be compiled."""

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype  # dtype of keys and values


def can_compile(model: CompilableModel, weights: Iterable[Tensor]) -> bool:
    """Return whether compiled steps support a model's device and number formats, and the formats of its weights."""
    is_wide = model.dtype == model.kv_dtype == torch.float32
    return model.device.type == "cpu" and is_wide and {weight.dtype for weight in weights} <= FORMATS


class CompiledSlots:
    """The slots that compiled code steps: those whose utterances began after the code was activated."""

    def __init__(self) -> None:
        self._step: Step | None = None
        self._slots: set[int] = set()

    def activate(self, step: Step) -> None:
        """Assign the slots of later utterances to `step`."""
        self._step = step

    def begin(self, slot: int) -> None:
        """Assign a slot that begins an utterance to the compiled step, if one is active, otherwise to torch."""
        (self._slots.add if self._step else self._slots.discard)(slot)

    def others(self, slots: Sequence[int]) -> list[int]:
        """Return the `slots` that torch steps."""
        return [slot for slot in slots if slot not in self._slots]

    def fill(self, slots: Sequence[int], made: np.ndarray) -> None:
        """Step the `slots` that are assigned to compiled code, and write the results to their rows of `made`."""
        compiled = [slot for slot in slots if slot in self._slots]
        if compiled:
            assert self._step is not None
            made[compiled] = self._step(compiled)
