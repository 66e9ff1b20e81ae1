"""The toy family's registration, a checkpoint of it, and an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families import registry
from tests.toy.family import NAME, Toy


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registration."""
    monkeypatch.setitem(registry.FAMILIES, NAME, "tests.toy.family:Toy")


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy") / "checkpoint"
    Toy().write_random(directory, size="tiny", form="compact", seed=0)
    return directory


@pytest.fixture
def engine(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu", max_batch_size=4)) as engine:
        yield engine
