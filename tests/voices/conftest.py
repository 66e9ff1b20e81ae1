"""A checkpoint with two voices of its own, and a directory for added voices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from s1_mini import ProductionTTSEngine
from s1_mini.types import Voice
from s1_mini.voices.format import fingerprint
from s1_mini.voices.library import FOLDER, write_voice
from voice_formats import BOOKS
from waiting import wait_until


@pytest.fixture
def voiced(tiny: Path, tmp_path: Path) -> Path:
    """A checkpoint with two voices, of which `anna` is the default."""
    checkpoint = tmp_path / "voiced"
    shutil.copytree(tiny, checkpoint)
    (checkpoint / FOLDER).mkdir()
    for index, name in enumerate(("anna", "bert")):
        write_voice(
            checkpoint / FOLDER, name, make_voice(index, f"I am {name}."), description="made up", is_default=index == 0
        )
    return checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty directory of voices."""
    (tmp_path / "added").mkdir()
    return tmp_path / "added"


@pytest.fixture
def codec(tiny: Path) -> str:
    """The fingerprint of the tiny checkpoint's codec."""
    return fingerprint([tiny / "codec.safetensors"])


def make_voice(seed: int = 0, text: str = "Made up.", frames: int = 9) -> Voice:
    codes = torch.randint(0, 32, (BOOKS, frames), generator=torch.Generator().manual_seed(seed))
    return Voice({"codes": codes}, text)


def settled(engine: ProductionTTSEngine) -> dict[str, Any]:
    """Wait until background work ends; return the voices part of the health report."""
    wait_until(lambda: engine.health_check()["voices"]["warming"] == 0)
    voices: dict[str, Any] = engine.health_check()["voices"]
    return voices
