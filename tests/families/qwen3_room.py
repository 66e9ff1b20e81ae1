"""Random Qwen3-TTS checkpoints, and voices for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from s1_mini import EngineConfig
from s1_mini.families.base import Placement
from s1_mini.families.qwen3.loaded import LoadedQwen3, open_qwen3
from s1_mini.families.qwen3.random import write_random
from s1_mini.families.qwen3.settings import Qwen3Settings
from s1_mini.families.qwen3.voice import CODES, VECTOR
from s1_mini.types import Voice

CPU = Placement(torch.device("cpu"), torch.float32, torch.float32)
KINDS = {"custom_voice": "tiny", "base": "tiny-base", "voice_design": "tiny-design"}


def written(directory: Path, kind: str, seed: int = 0) -> Path:
    """A random checkpoint of a kind."""
    write_random(directory, size=KINDS[kind], form="published", seed=seed)
    return directory


def opened(directory: Path, **settings: Any) -> LoadedQwen3:
    return open_qwen3(directory, CPU, Qwen3Settings(**settings))


def config(directory: Path, **options: Any) -> EngineConfig:
    return EngineConfig(checkpoint_path=directory, max_batch_size=8, max_columns=512, compile="false", **options)


def clone(loaded: LoadedQwen3, text: str = "Well, hello.", frames: int = 7, seed: int = 0) -> Voice:
    """A voice with a random vector and codes; without a transcript only the vector is used."""
    generator, config = torch.Generator().manual_seed(seed), loaded.config
    vector = torch.randn(config.backbone.dim, generator=generator)
    codes = torch.randint(config.code_size, (config.num_codebooks, frames), generator=generator)
    return Voice({VECTOR: vector, CODES: codes}, text)
