"""Sizes of an Encodec, with the keys of transformers' config: a separate file, or `codec_config` in Bark's config."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.layers.json_config import declare, flag, invalid, read_fields, size, sizes

# Far larger than in any codec, but small enough that a damaged config cannot exhaust the machine's memory.
MAX_SIZE = 2**18
_MAX_PARTS = 32  # ratios, bandwidths, layers
_MAX_CHANNELS = 2**13  # the published codec has 512
_MAX_BOOKS = 256

# The only supported values of these keys; other codecs, such as Encodec at 48 kHz, have other values.
_FIXED: Mapping[str, Any] = {
    "audio_channels": 1,
    "normalize": False,
    "norm_type": "weight_norm",
    "use_causal_conv": True,
    "pad_mode": "reflect",
    "trim_right_ratio": 1.0,
    "chunk_length_s": None,
    "overlap": None,
}


_size = partial(size, most=MAX_SIZE)
_count = partial(size, most=_MAX_PARTS)


def _bandwidths(name: str, value: Any) -> tuple[float, ...]:
    is_list = isinstance(value, list | tuple) and 1 <= len(value) <= _MAX_PARTS
    fits = is_list and all(type(each) in (int, float) and 0 < each < MAX_SIZE for each in value)
    if not fits or list(value) != sorted(value):
        raise invalid(name, value, f"a list of 1 to {_MAX_PARTS} bandwidths in kbit/s, in ascending order")
    return tuple(value)


@dataclass(frozen=True)
class EncodecConfig:
    """Architecture of one codec; the defaults are the values of facebook/encodec_24khz."""

    sampling_rate: int = _size(24_000)
    hidden_size: int = _size(128)  # channels between encoder, codebooks and decoder
    num_filters: int = _size(32)
    num_residual_layers: int = _count(1)
    upsampling_ratios: tuple[int, ...] = sizes((8, 5, 4, 2), most=MAX_SIZE, max_length=_MAX_PARTS)
    kernel_size: int = _size(7)
    last_kernel_size: int = _size(7)
    residual_kernel_size: int = _size(3)
    dilation_growth_rate: int = _size(2)
    compress: int = _size(2)
    num_lstm_layers: int = _count(2)
    codebook_size: int = _size(1024)
    use_conv_shortcut: bool = flag(True)
    target_bandwidths: tuple[float, ...] = declare((1.5, 3.0, 6.0, 12.0, 24.0), "", _bandwidths)  # kbit/s

    @property
    def samples_per_frame(self) -> int:
        """Product of the ratios: 320 as published, which gives 75 frames/s at 24 kHz."""
        return math.prod(self.upsampling_ratios)

    @property
    def width(self) -> int:
        """Channels of the LSTMs."""
        return self.num_filters * 2 ** len(self.upsampling_ratios)

    @property
    def num_codebooks(self) -> int:
        """Number of codebooks at the highest bandwidth."""
        frame_rate = -(-self.sampling_rate // self.samples_per_frame)  # rounded up, as in the original
        return int(1000 * self.target_bandwidths[-1] // (frame_rate * (self.codebook_size.bit_length() - 1)))

    @property
    def first_frames(self) -> int:
        """Minimum number of frames in a stream's first chunk, unless that is the whole stream: 7 as published.

        Layers mirror the beginning of a stream, for which they need this many frames.
        """
        rate = 1
        # For each layer, the number of inputs that it needs (one more than it mirrors) and its steps per frame.
        mirrored = [(self.kernel_size, 1), (self.last_kernel_size, 1)]
        for ratio in self.upsampling_ratios:
            rate *= ratio
            mirrored += [(self._residual_reach(), rate), (ratio + 1, rate)]
        mirrored += [(self.kernel_size, rate), (self.last_kernel_size, rate)]
        return max(-(-inputs // steps) for inputs, steps in mirrored)

    def _residual_reach(self) -> int:
        dilation = self.dilation_growth_rate ** (self.num_residual_layers - 1)
        return (self.residual_kernel_size - 1) * dilation + 1

    @classmethod
    def from_json(cls, values: Mapping[str, Any], source: str = "config.json") -> EncodecConfig:
        """Read transformers' config. Absent keys have their published values; unknown keys are ignored.

        Raises `CheckpointMismatchError`, naming `source` and the key, for invalid values.
        """
        for name, only in _FIXED.items():
            if values.get(name, only) != only:
                raise CheckpointMismatchError(
                    f"{source}: {name}={reprlib.repr(values[name])} is not supported; "
                    f"Encodec at 24 kHz has {name}={only}"
                )
        config = cls(**read_fields(cls, values, source))
        config._check(source, values.get("codebook_dim"))
        return config

    def _check(self, source: str, codebook_dim: Any) -> None:
        if codebook_dim not in (None, self.hidden_size):
            raise CheckpointMismatchError(
                f"{source}: codebook_dim={reprlib.repr(codebook_dim)} must equal hidden_size={self.hidden_size}"
            )
        if self.codebook_size.bit_count() != 1 or self.codebook_size < 2:
            raise CheckpointMismatchError(
                f"{source}: codebook_size={self.codebook_size} must be a power of two above 1"
            )
        for name, value, most in (
            ("num_filters times 2 for each of the upsampling_ratios", self.width, _MAX_CHANNELS),
            ("hidden_size", self.hidden_size, _MAX_CHANNELS),
            ("the product of upsampling_ratios", self.samples_per_frame, MAX_SIZE),
            ("the receptive field of the residual layers", self._residual_reach(), MAX_SIZE),
            ("compress", self.compress, self.num_filters),
            ("kernel_size", self.kernel_size, 1024),
            ("last_kernel_size", self.last_kernel_size, 1024),
        ):
            if value > most:
                raise CheckpointMismatchError(f"{source}: {name} is {value}; the limit is {most}")
        if not 1 <= self.num_codebooks <= _MAX_BOOKS:
            raise CheckpointMismatchError(
                f"{source}: target_bandwidths {self.target_bandwidths} require {self.num_codebooks} codebooks; "
                f"1 to {_MAX_BOOKS} are supported"
            )
