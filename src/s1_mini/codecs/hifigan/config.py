"""The architecture in a vocoder's `config.json`, checked before any weight is read, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.layers.json_config import declare, flag, invalid, number, read_fields, read_sizes, size, sizes

MAX_SIZE = 2**14  # limit of channels, taps and rates, far larger than in any checkpoint
MAX_STAGES = 16


def _dilations(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_STAGES:
        raise invalid(name, value, f"a list of 1 to {MAX_STAGES} lists")
    return tuple(read_sizes(name, each, MAX_SIZE) for each in value)


@dataclass(frozen=True)
class HifiGanConfig:
    """Sizes of one HiFi-GAN. The defaults are the values of the published vocoder for SpeechT5."""

    num_bins: int = size(80, "model_in_dim", MAX_SIZE)
    channels: int = size(512, "upsample_initial_channel", MAX_SIZE)  # before the upsamplings, each of which halves them
    rates: tuple[int, ...] = sizes((4, 4, 4, 4), "upsample_rates", MAX_SIZE)
    rate_taps: tuple[int, ...] = sizes((8, 8, 8, 8), "upsample_kernel_sizes", MAX_SIZE)
    block_taps: tuple[int, ...] = sizes((3, 7, 11), "resblock_kernel_sizes", MAX_SIZE)
    dilations: tuple[tuple[int, ...], ...] = declare(((1, 3, 5),) * 3, "resblock_dilation_sizes", _dilations)
    # Slope of the leaky ReLU below zero.
    slope: float = number(0.1, "leaky_relu_slope", lambda value: 0 <= value < 1, "a number in [0, 1)")
    normalizes: bool = flag(True, "normalize_before")  # whether to normalize frames by the checkpoint's mean and scale
    sample_rate: int = size(16_000, "sampling_rate")  # Hz

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.rates)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> HifiGanConfig:
        """Read `config.json`. Raises `CheckpointMismatchError` for invalid values and combinations of values."""
        config = cls(**read_fields(cls, values, "the vocoder's config.json"))
        if len(config.rates) != len(config.rate_taps) or len(config.block_taps) != len(config.dilations):
            raise CheckpointMismatchError(
                "the vocoder's config.json: upsample_rates and upsample_kernel_sizes must have the same length, and "
                "so must resblock_kernel_sizes and resblock_dilation_sizes"
            )
        if any(taps < rate or (taps - rate) % 2 for taps, rate in zip(config.rate_taps, config.rates, strict=True)):
            raise CheckpointMismatchError(
                "the vocoder's config.json: each of upsample_kernel_sizes must equal its upsample_rate or exceed it "
                "by an even number"
            )
        if any(taps % 2 == 0 for taps in config.block_taps) or config.channels % 2 ** len(config.rates):
            raise CheckpointMismatchError(
                "the vocoder's config.json: resblock_kernel_sizes must be odd, and upsample_initial_channel a multiple "
                f"of {2 ** len(config.rates)}"
            )
        return config
