"""What tests of the engine room share: the tiny speaker on a CPU, and two engines that are equipped differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from s1_mini.config import EngineConfig
from s1_mini.runtime.generator import Generator
from s1_mini.runtime.loader import Speaker, load
from s1_mini.runtime.model_runner import ModelRunner

Equip = Callable[[ModelRunner, Speaker], None]


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> Speaker:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu"))


def start_equipped(speaker: Speaker, settings: dict[str, Any], equip: Equip) -> Generator:
    """An engine whose runner gets what a CPU has not, where a GPU captures its graphs."""
    plain = ModelRunner.capture

    def capture(self: ModelRunner) -> None:
        plain(self)
        with torch.inference_mode():
            equip(self, speaker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelRunner, "capture", capture)
        return Generator(speaker, EngineConfig(device="cpu", **settings))


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, speaker: Speaker) -> Iterator[tuple[Generator, Generator]]:
    """An engine with what the module's `equip` gives its runner, and one without; both by the module's `SETTINGS`."""
    settings, equip = request.module.SETTINGS, request.module.equip
    made = start_equipped(speaker, settings, equip), Generator(speaker, EngineConfig(device="cpu", **settings))
    yield made
    for generator in made:
        generator.close(drains=False)
