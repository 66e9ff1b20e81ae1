"""What a stage can have compiled before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Step = Callable[[Sequence[int]], np.ndarray]  # makes an array [n, …] of n slots
FORMATS = {torch.float32, torch.bfloat16, torch.int8}  # of weights, that `kernels/packed.py` lays out


@dataclass(frozen=True)
class Compilable:
    """A step that one compiled function can make; until then, and wherever that fails, torch makes it."""

    what: str  # as people call it
    module: str  # that has a `compile_for(formats)`; it imports no torch
    formats: Sequence[str]  # of the weights
    use: Callable[[], None]  # loads it, compiles it if it is not kept, and checks it; for work that begins after that


class Model(Protocol):
    """What a model tells of itself."""

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype  # of its keys and values


def can_compile(model: Model, weights: Iterable[Tensor]) -> bool:
    """Whether a model is where compiled steps are made, and in the formats that they are for, its weights too."""
    is_wide = model.dtype == model.kv_dtype == torch.float32
    return model.device.type == "cpu" and is_wide and {weight.dtype for weight in weights} <= FORMATS


class CompiledSlots:
    """The slots whose steps a compiled function makes, from first to last: those that began since it is used."""

    def __init__(self) -> None:
        self._step: Step | None = None
        self._slots: set[int] = set()

    def compilable(self, what: str, family: ModuleType, model: Model, make: Callable[[Any], Step]) -> Compilable:
        """Tell what is compiled. Slots that begin after it is used make their steps by what `make` gives of weights.

        A family's module has `MODULE`, `gather(model)`, which gives weights, `formats_of(weights)`, and `check(model,
        weights)`, which raises `RuntimeError` if compiled steps are others than torch's.
        """
        weights = family.gather(model)

        def use() -> None:
            family.check(model, weights)
            self._step = make(weights)

        return Compilable(what, family.MODULE, family.formats_of(weights), use)

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
