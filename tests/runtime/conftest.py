"""Fixtures and helpers of the runtime's tests: the tiny checkpoint on a CPU, and engines with and without graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s1_mini.config import EngineConfig
from s1_mini.core.output_queue import OutputQueue
from s1_mini.runtime.engine_core import EngineCore
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import ChunkProfile, SamplingParams, TTSRequest, Voice
from voice_formats import BOOKS

Equip = Callable[[EngineCore], None]
STARTED: list[Synthesizer] = []  # by the current test


@pytest.fixture(scope="session")
def speaker(tiny: Path) -> LoadedCheckpoint:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu"))


def start(speaker: LoadedCheckpoint, **settings: Any) -> Synthesizer:
    values = {"device": "cpu", "max_batch_size": 4, "max_columns": 512, "max_queue_size": 1000} | settings
    STARTED.append(Synthesizer(speaker, EngineConfig(**values)))
    return STARTED[-1]


@pytest.fixture(autouse=True)
def _close_started() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().close(drains=False)


@pytest.fixture
def synthesizer(speaker: LoadedCheckpoint) -> Synthesizer:
    return start(speaker)


def random_voice(frames: int = 20, *, seed: int = 1) -> Voice:
    codes = torch.randint(0, 32, (BOOKS, frames), generator=torch.Generator().manual_seed(seed))
    return Voice({"codes": codes}, f"Voice number {seed}.")


def ask(
    synthesizer: Synthesizer,
    *pieces: str,
    seed: int = 1,
    frames: int = 12,
    temperature: float = 0.8,
    voices: Sequence[Voice] = (),
    profile: ChunkProfile | None = None,
    **options: Any,
) -> OutputQueue:
    sampling = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=frames)
    request = TTSRequest("", chunk_profile=profile)
    return synthesizer.speak(pieces or ("Hello.",), voices, sampling, request, **options)


def sound(queue: OutputQueue) -> np.ndarray:
    return np.concatenate([chunk.audio for chunk in queue])


def start_equipped(speaker: LoadedCheckpoint, settings: dict[str, Any], equip: Equip) -> Synthesizer:
    """Start an engine whose stages `equip` gives the graphs that a CPU does not have."""
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
    """An engine whose stages the module's `equip` extends, and one without; both with the module's `SETTINGS`."""
    settings, equip = request.module.SETTINGS, request.module.equip
    made = start_equipped(speaker, settings, equip), Synthesizer(speaker, EngineConfig(device="cpu", **settings))
    yield made
    for synthesizer in made:
        synthesizer.close(drains=False)
