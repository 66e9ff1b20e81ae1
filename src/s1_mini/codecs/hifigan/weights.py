"""Fit a vocoder's tensors strictly."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.codecs.hifigan.model import HifiGan
from s1_mini.weights.fit import check_fit, fit, skeleton


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
