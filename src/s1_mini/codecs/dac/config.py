"""Sizes of a DAC codec: the published ones, or those of a `codec_config.json` beside the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.layers.json_config import MAX_LAYERS, read_number, read_size, read_sizes
from s1_mini.weights.directory import read_json

if TYPE_CHECKING:
    from s1_mini.layers.transformer import BlockConfig

NORM_EPS = 1e-5
ROPE_BASE = 10_000

# Far beyond any codec, near enough that a damaged config cannot ask for the machine's whole memory.
MAX_SIZE = 2**18
MAX_FACTORS = {"drive": 16, "ceiling": 1}


@dataclass(frozen=True)
class DacConfig:
    """Architecture of one codec; the defaults are S1-mini's (modded_dac_vq.yaml)."""

    sample_rate: int = 44_100
    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    encoder_transformer_layers: tuple[int, ...] = (0, 0, 0, 4)
    enc_block_size: int = 16_384  # steps of the encoder's transformers, 190 s
    enc_window: int = 512
    enc_head_dim: int = 64
    decoder_dim: int = 1536
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    input_dim: int = 1024  # channels between encoder, quantizer and decoder
    n_codebooks: int = 9  # residual ones, beside the semantic one
    codebook_size: int = 1024
    codebook_dim: int = 8
    semantic_codebook_size: int = 4096
    downsample_factor: tuple[int, ...] = (2, 2)
    q_block_size: int = 4096  # frames of the quantizer's transformers, 190 s
    q_n_layer: int = 8
    q_n_head: int = 16
    q_n_local_heads: int | None = None  # None: as many as q_n_head
    q_dim: int = 1024
    q_inter: int = 3072
    q_window: int = 128
    # Samples are ceiling · tanh(drive · x); other than 1, louder and with lower peaks than it was trained.
    drive: float = 1.0
    ceiling: float = 1.0

    @property
    def num_codebooks(self) -> int:
        return 1 + self.n_codebooks

    @property
    def samples_per_frame(self) -> int:
        """Encoder strides times the quantizer's: 2 * 4 * 8 * 8 * 4 = 2048, so 21.5 frames/s at 44.1 kHz."""
        return math.prod(self.encoder_rates) * math.prod(self.downsample_factor)

    def encoder_block(self, dim: int) -> BlockConfig:
        from s1_mini.layers.transformer import BlockConfig  # which loads torch, and who reads sizes needs none

        heads = max(1, dim // self.enc_head_dim)
        return BlockConfig(dim, heads, heads, self.enc_head_dim, 3 * dim, NORM_EPS, layer_scale=True)

    def quantizer_block(self) -> BlockConfig:
        from s1_mini.layers.transformer import BlockConfig

        heads = self.q_n_head
        return BlockConfig(
            self.q_dim,
            heads,
            self.q_n_local_heads or heads,
            self.q_dim // heads,
            self.q_inter,
            NORM_EPS,
            layer_scale=True,
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DacConfig:
        """Read a `codec_config.json`; absent keys have the published value.

        Keys that no layer depends on are ignored. Raises `CheckpointMismatchError` for values that cannot be.
        """
        given: dict[str, Any] = {}
        for field in fields(cls):
            value = values.get(field.name)
            if value is not None:
                given[field.name] = _READERS[str(field.type).partition("[")[0]](
                    f"codec_config.json: {field.name}", value
                )
        config = cls(**given)
        config._check()
        return config

    def _check(self) -> None:
        if self.n_codebooks > MAX_LAYERS or self.q_n_layer > MAX_LAYERS:
            raise CheckpointMismatchError(f"codec_config.json: more than {MAX_LAYERS} codebooks or layers")
        if self.q_dim % self.q_n_head or self.q_n_head % (self.q_n_local_heads or self.q_n_head):
            raise CheckpointMismatchError(
                f"codec_config.json: q_dim={self.q_dim}, q_n_head={self.q_n_head} and "
                f"q_n_local_heads={self.q_n_local_heads} do not divide each other"
            )
        if math.prod(self.decoder_rates) * math.prod(self.downsample_factor) != self.samples_per_frame:
            raise CheckpointMismatchError(
                f"codec_config.json: encoder_rates {self.encoder_rates} and decoder_rates {self.decoder_rates} "
                "differ in product"
            )
        if self.q_dim != self.input_dim:
            raise CheckpointMismatchError(f"codec_config.json: q_dim={self.q_dim} is not input_dim={self.input_dim}")
        if len(self.encoder_transformer_layers) != len(self.encoder_rates):
            raise CheckpointMismatchError(
                "codec_config.json: encoder_transformer_layers and encoder_rates differ in length"
            )


def read_dac_config(directory: Path) -> DacConfig:
    """Read `codec_config.json`; a published directory has none and means the published sizes."""
    path = directory / "codec_config.json"
    return DacConfig.from_json(read_json(path)) if path.exists() else DacConfig()


def _factor(name: str, value: Any) -> float:
    most = MAX_FACTORS[name.rpartition(" ")[2]]
    return read_number(name, value, lambda each: 0 < each <= most, f"a number above 0 and up to {most}")


def _size(name: str, value: Any) -> int:
    return read_size(name, value, MAX_SIZE)


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    return read_sizes(name, value, MAX_LAYERS, least=0 if name.endswith("encoder_transformer_layers") else 1)


_READERS: dict[str, Callable[[str, Any], Any]] = {"int": _size, "int | None": _size, "tuple": _sizes, "float": _factor}
