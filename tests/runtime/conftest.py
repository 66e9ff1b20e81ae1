"""What tests of the engine room share: the tiny speaker on a CPU, and two engines that are equipped differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from s1_mini.config import EngineConfig
from s1_mini.runtime.engine_core import EngineCore
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.synthesizer import Synthesizer

Equip = Callable[[EngineCore], None]


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> LoadedCheckpoint:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu"))


def start_equipped(speaker: LoadedCheckpoint, settings: dict[str, Any], equip: Equip) -> Synthesizer:
    """An engine whose stages get what a CPU has not, before it starts."""
    plain = EngineCore.start

    def begin(self: EngineCore) -> None:
        with torch.inference_mode():
            equip(self)
        plain(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineCore, "start", begin)
        return Synthesizer(speaker, EngineConfig(device="cpu", **settings))


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, speaker: LoadedCheckpoint) -> Iterator[tuple[Synthesizer, Synthesizer]]:
    """An engine with what the module's `equip` gives its stages, and one without; both by the module's `SETTINGS`."""
    settings, equip = request.module.SETTINGS, request.module.equip
    made = start_equipped(speaker, settings, equip), Synthesizer(speaker, EngineConfig(device="cpu", **settings))
    yield made
    for synthesizer in made:
        synthesizer.close(drains=False)
