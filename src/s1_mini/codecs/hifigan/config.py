"""What a vocoder's `config.json` says. Read, never assumed; checked before any weight is. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.layers.json_config import invalid, read_flag, read_number, read_size, read_sizes

MAX_SIZE = 2**14  # channels, taps, rates: far beyond any checkpoint
MAX_STAGES = 16


@dataclass(frozen=True)
class HifiGanConfig:
    """Sizes of one HiFi-GAN. Defaults are those of the published one for SpeechT5."""

    num_bins: int = 80
    channels: int = 512  # before the first upsampling, which halves them, as each one does
    rates: tuple[int, ...] = (4, 4, 4, 4)
    rate_taps: tuple[int, ...] = (8, 8, 8, 8)
    block_taps: tuple[int, ...] = (3, 7, 11)
    dilations: tuple[tuple[int, ...], ...] = ((1, 3, 5),) * 3  # of each kind of block
    slope: float = 0.1  # of the leaky rectifier below zero
    normalizes: bool = True  # frames, by the mean and the scale that the checkpoint has
    sample_rate: int = 16_000  # Hz

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.rates)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> HifiGanConfig:
        """Read `config.json`. Raises `CheckpointMismatchError` for a value of the wrong type, or impossible."""
        default = cls()

        def given(name: str, otherwise: Any) -> tuple[str, Any]:
            return f"the vocoder's config.json: {name}", values.get(name, otherwise)

        config = cls(
            num_bins=read_size(*given("model_in_dim", default.num_bins), MAX_SIZE),
            channels=read_size(*given("upsample_initial_channel", default.channels), MAX_SIZE),
            rates=read_sizes(*given("upsample_rates", default.rates), MAX_SIZE),
            rate_taps=read_sizes(*given("upsample_kernel_sizes", default.rate_taps), MAX_SIZE),
            block_taps=read_sizes(*given("resblock_kernel_sizes", default.block_taps), MAX_SIZE),
            dilations=_dilations(*given("resblock_dilation_sizes", default.dilations)),
            slope=read_number(
                *given("leaky_relu_slope", default.slope), lambda value: 0 <= value < 1, "a number in [0, 1)"
            ),
            normalizes=read_flag(*given("normalize_before", default.normalizes)),
            sample_rate=read_size(*given("sampling_rate", default.sample_rate)),
        )
        if len(config.rates) != len(config.rate_taps) or len(config.block_taps) != len(config.dilations):
            raise CheckpointMismatchError("the vocoder's config.json: lists of rates or of kernels differ in length")
        if any(taps < rate or (taps - rate) % 2 for taps, rate in zip(config.rate_taps, config.rates, strict=True)):
            raise CheckpointMismatchError(
                "the vocoder's config.json: upsample_kernel_sizes must exceed upsample_rates by even numbers"
            )
        if any(taps % 2 == 0 for taps in config.block_taps) or config.channels % 2 ** len(config.rates):
            raise CheckpointMismatchError(
                "the vocoder's config.json: resblock_kernel_sizes must be odd, and upsample_initial_channel a multiple "
                f"of {2 ** len(config.rates)}"
            )
        return config


def _dilations(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_STAGES:
        raise invalid(name, value, f"a list of up to {MAX_STAGES} lists")
    return tuple(read_sizes(name, each, MAX_SIZE) for each in value)
