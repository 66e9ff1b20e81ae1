"""What a stage can have compiled before it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Compilable:
    """A step that one compiled function can make; until then, and wherever that fails, torch makes it."""

    what: str  # as people call it
    module: str  # that has a `compile_for(formats)`; it imports no torch
    formats: Sequence[str]  # of the weights
    use: Callable[[], None]  # loads it, compiles it if it is not kept, and checks it; for work that begins after that
