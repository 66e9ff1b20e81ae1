"""Sizes of a DAC codec, from `codec_config.json` in the checkpoint; without that file, the published sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.layers.json_config import MAX_LAYERS, declare, invalid, number, read_fields, size, sizes
from s1_mini.weights.directory import read_json

if TYPE_CHECKING:
    from s1_mini.layers.transformer import BlockConfig

NORM_EPS = 1e-5
ROPE_BASE = 10_000

# Larger than in any codec, but small enough that a damaged config cannot exhaust the machine's memory.
MAX_SIZE = 2**18

_size = partial(size, most=MAX_SIZE)
_sizes = partial(sizes, most=MAX_LAYERS)


def _factor(most: int) -> Any:
    return number(1.0, "", lambda value: 0 < value <= most, f"a number above 0 and up to {most}")


def _read_id(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9A-Za-z_-]{0,64}", value):
        raise invalid(name, value, "up to 64 letters, digits, _ or -")
    return value


@dataclass(frozen=True)
class DacConfig:
    """Architecture of one codec; the defaults are S1-mini's (modded_dac_vq.yaml)."""

    sample_rate: int = _size(44_100)
    encoder_dim: int = _size(64)
    encoder_rates: tuple[int, ...] = _sizes((2, 4, 8, 8))
    encoder_transformer_layers: tuple[int, ...] = _sizes((0, 0, 0, 4), least=0)
    enc_block_size: int = _size(16_384)  # steps of the encoder's transformers, 190 s
    enc_window: int = _size(512)
    enc_head_dim: int = _size(64)
    decoder_dim: int = _size(1536)
    decoder_rates: tuple[int, ...] = _sizes((8, 8, 4, 2))
    input_dim: int = _size(1024)  # channels between encoder, quantizer and decoder
    n_codebooks: int = _size(9, most=MAX_LAYERS)  # residual codebooks, without the semantic one
    codebook_size: int = _size(1024)
    codebook_dim: int = _size(8)
    semantic_codebook_size: int = _size(4096)
    downsample_factor: tuple[int, ...] = _sizes((2, 2))
    q_block_size: int = _size(4096)  # frames of the quantizer's transformers, 190 s
    q_n_layer: int = _size(8, most=MAX_LAYERS)
    q_n_head: int = _size(16)
    q_n_local_heads: int | None = _size(None)  # None: as many as q_n_head
    q_dim: int = _size(1024)
    q_inter: int = _size(3072)
    q_window: int = _size(128)
    # Sizes of the post module, if they differ from the pre module's, which are above; heads have the same size in both.
    post_n_layer: int | None = _size(None, most=MAX_LAYERS)
    post_n_head: int | None = _size(None)
    post_n_local_heads: int | None = _size(None)
    post_intermediate_size: int | None = _size(None)
    # Samples are ceiling · tanh(drive · x); in training, both factors are 1. A higher drive makes audio louder; a lower
    # ceiling makes audio quieter and limits its peaks.
    drive: float = _factor(16)
    ceiling: float = _factor(1)
    # Stored voices may be used with every codec of the same id, whose encoder gives the same codes; by default, the
    # id is a hash of the codec's file.
    encoder_id: str = declare("", "", _read_id)

    @property
    def num_codebooks(self) -> int:
        return 1 + self.n_codebooks

    @property
    def samples_per_frame(self) -> int:
        """Product of all strides of encoder and quantizer; as published 2048, which gives 21.5 frames/s at 44.1 kHz."""
        return math.prod(self.encoder_rates) * math.prod(self.downsample_factor)

    def encoder_block(self, dim: int) -> BlockConfig:
        from s1_mini.layers.transformer import BlockConfig  # imports torch, which is not needed to read sizes

        heads = max(1, dim // self.enc_head_dim)
        return BlockConfig(dim, heads, heads, self.enc_head_dim, 3 * dim, NORM_EPS, layer_scale=True)

    @property
    def _heads(self) -> dict[str, tuple[int, int]]:
        """Heads, and heads of keys and values, of the pre module (q) and the post module (post)."""
        post = self.post_n_head or self.q_n_head
        return {
            "q": (self.q_n_head, self.q_n_local_heads or self.q_n_head),
            "post": (post, self.post_n_local_heads or self.q_n_local_heads or post),
        }

    def pre_block(self) -> BlockConfig:
        return self._quantizer_block("q", self.q_inter)

    def post_block(self) -> BlockConfig:
        return self._quantizer_block("post", self.post_intermediate_size or self.q_inter)

    def _quantizer_block(self, prefix: str, inner: int) -> BlockConfig:
        from s1_mini.layers.transformer import BlockConfig

        heads, kv_heads = self._heads[prefix]
        return BlockConfig(self.q_dim, heads, kv_heads, self.q_dim // self.q_n_head, inner, NORM_EPS, layer_scale=True)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DacConfig:
        """Read a `codec_config.json`. Absent keys have their published values; unknown keys are ignored.

        Raises `CheckpointMismatchError` for invalid values.
        """
        config = cls(**read_fields(cls, values, "codec_config.json"))
        config._check()
        return config

    def _check(self) -> None:
        for name, (heads, kv_heads) in self._heads.items():
            if self.q_dim % self.q_n_head or heads % kv_heads:
                raise CheckpointMismatchError(
                    f"codec_config.json: q_dim={self.q_dim} must be a multiple of q_n_head={self.q_n_head}, and "
                    f"{name}_n_head={heads} a multiple of {name}_n_local_heads={kv_heads}"
                )
        if math.prod(self.decoder_rates) * math.prod(self.downsample_factor) != self.samples_per_frame:
            raise CheckpointMismatchError(
                f"codec_config.json: encoder_rates {self.encoder_rates} and decoder_rates {self.decoder_rates} must "
                "have the same product"
            )
        if self.q_dim != self.input_dim:
            raise CheckpointMismatchError(
                f"codec_config.json: q_dim={self.q_dim} must equal input_dim={self.input_dim}"
            )
        if len(self.encoder_transformer_layers) != len(self.encoder_rates):
            raise CheckpointMismatchError(
                "codec_config.json: encoder_transformer_layers and encoder_rates must have the same length"
            )


def read_dac_config(directory: Path, known: Mapping[str, Any] | None = None) -> DacConfig:
    """Read `codec_config.json`, which published checkpoints lack.

    Absent keys have the values of `known`, by key, or else those of S1-mini. Raises `CheckpointError`.
    """
    path = directory / "codec_config.json"
    stored = read_json(path) if path.exists() else {}
    return DacConfig.from_json({**(known or {}), **{key: value for key, value in stored.items() if value is not None}})
