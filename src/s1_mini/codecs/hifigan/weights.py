"""Find a vocoder's files, and fit its tensors strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.codecs.hifigan.model import HifiGan
from s1_mini.weights.directory import find_model, read_json
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import check_fit, fit, skeleton


def read_hifigan_config(directory: Path) -> HifiGanConfig:
    """Read the config of a vocoder's own folder. Raises `CheckpointError`."""
    return HifiGanConfig.from_json(read_json(directory / "config.json"))


def open_hifigan(directory: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> HifiGan:
    """Open a vocoder's own folder, for windows with steps last. Raises `CheckpointError`."""
    path = find_model(directory)
    return build_hifigan(read_hifigan_config(directory), read_tensors(path), dtype, torch.device(device), str(path))


def build_hifigan(
    config: HifiGanConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device, source: str
) -> HifiGan:
    """Build a vocoder of tensors by their published names. Raises `CheckpointMismatchError`."""
    with skeleton():
        vocoder = HifiGan(config)
    fit(vocoder, tensors, source=source, dtype=dtype, device=device)
    return vocoder


def check(config: HifiGanConfig, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise `CheckpointMismatchError` unless tensors fit a config."""
    with skeleton():
        vocoder = HifiGan(config)
    check_fit(vocoder, tensors, source=source)
