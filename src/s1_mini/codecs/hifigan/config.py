"""What a vocoder's `config.json` says. Read, never assumed; checked before any weight is. Imports no torch."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError

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
        config = cls(
            num_bins=_size(values, "model_in_dim", default.num_bins),
            channels=_size(values, "upsample_initial_channel", default.channels),
            rates=_sizes(values, "upsample_rates", default.rates),
            rate_taps=_sizes(values, "upsample_kernel_sizes", default.rate_taps),
            block_taps=_sizes(values, "resblock_kernel_sizes", default.block_taps),
            dilations=_lists(values, "resblock_dilation_sizes", default.dilations),
            slope=_slope(values, default.slope),
            normalizes=_flag(values, "normalize_before", default=default.normalizes),
            sample_rate=_size(values, "sampling_rate", default.sample_rate, most=2**20),
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


def _size(values: Mapping[str, Any], name: str, default: int, most: int = MAX_SIZE) -> int:
    return _checked(name, values.get(name, default), most)


def _checked(name: str, value: Any, most: int = MAX_SIZE) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise _wrong(name, value, f"a positive whole number up to {most}")
    return value


def _sizes(values: Mapping[str, Any], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return _list(name, values.get(name, default))


def _lists(values: Mapping[str, Any], name: str, default: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    value = values.get(name, default)
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_STAGES:
        raise _wrong(name, value, f"a list of up to {MAX_STAGES} lists")
    return tuple(_list(name, each) for each in value)


def _list(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_STAGES:
        raise _wrong(name, value, f"a list of up to {MAX_STAGES} numbers")
    return tuple(_checked(name, each) for each in value)


def _slope(values: Mapping[str, Any], default: float) -> float:
    value = values.get("leaky_relu_slope", default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise _wrong("leaky_relu_slope", value, "a number in [0, 1)")
    return float(value)


def _flag(values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _wrong(name: str, value: Any, allowed: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(f"the vocoder's config.json: {name}={reprlib.repr(value)} is not {allowed}")
