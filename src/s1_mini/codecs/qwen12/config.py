"""The architecture in the codec's `config.json`, checked before any weight is read, without torch.

Keys of sizes are required, because the default values in the original's code differ from the published values.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.layers.json_config import MAX_LAYERS, POSITIVE, invalid, number, read_fields, read_size, size, sizes
from s1_mini.weights.directory import read_json

if TYPE_CHECKING:
    from s1_mini.layers.transformer import BlockConfig

MODEL_TYPE = "qwen3_tts_tokenizer_12hz"
FOLDER = "speech_tokenizer"  # folder of the codec in a checkpoint
SOURCE = f"{FOLDER}/config.json"

# Larger than in any codec, but small enough that a damaged config cannot exhaust the machine's memory.
_size = partial(size, most=2**18)
_sizes = partial(sizes, most=2**10)
_count = partial(size, most=MAX_LAYERS)

# The only supported values of these keys.
_FIXED_DECODER: Mapping[str, Any] = {"num_semantic_quantizers": 1, "attention_bias": False, "hidden_act": "silu"}
_FIXED_ENCODER: Mapping[str, Any] = {
    "num_semantic_quantizers": 1,
    "num_residual_layers": 1,
    "audio_channels": 1,
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "pad_mode": "constant",
    "attention_bias": False,
    "hidden_act": "gelu",
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The keys that encoder and decoder have in common."""

    hidden_size: int = _size()
    intermediate_size: int = _size()
    num_hidden_layers: int = _count()
    num_attention_heads: int = _size()
    num_key_value_heads: int = _size()
    head_dim: int = _size()
    codebook_size: int = _size()
    codebook_dim: int = _size()
    num_quantizers: int = _count(least=2)
    upsampling_ratios: tuple[int, ...] = _sizes()
    rope_theta: float = number(10_000.0, "", *POSITIVE)
    max_position_embeddings: int = _size(8000)  # steps of the rotary table

    def block_of(self, eps: float) -> BlockConfig:
        from s1_mini.layers.transformer import BlockConfig  # imports torch, which is not needed to read sizes

        heads, groups = self.num_attention_heads, self.num_key_value_heads
        return BlockConfig(
            self.hidden_size, heads, groups, self.head_dim, self.intermediate_size, eps, layer_scale=True
        )

    def check(self, source: str) -> None:
        if self.head_dim % 2:
            raise CheckpointMismatchError(f"{source}.head_dim={self.head_dim} must be even for rotary positions")
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointMismatchError(
                f"{source}.num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """The decoder's keys. `codebook_dim` is the width of a frame's vector; codebook entries have half that width."""

    latent_dim: int = _size()
    decoder_dim: int = _size()
    sliding_window: int = _size()
    upsample_rates: tuple[int, ...] = _sizes()
    rms_norm_eps: float = number(MISSING, "", *POSITIVE)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """The encoder's keys (Mimi; Défossez et al. 2024). Codebooks beyond the decoder's `num_quantizers` are not used."""

    num_filters: int = _size()
    compress: int = _size()
    kernel_size: int = _size()
    last_kernel_size: int = _size()
    residual_kernel_size: int = _size()
    norm_eps: float = number(MISSING, "", *POSITIVE)


@dataclass(frozen=True)
class Qwen12Config:
    """Sizes of one codec."""

    sample_rate: int  # Hz
    samples_per_frame: int
    decoder: DecoderConfig
    encoder: EncoderConfig

    @property
    def num_codebooks(self) -> int:
        return self.decoder.num_quantizers

    @property
    def encoder_stride(self) -> int:
        """Steps of the encoder's transformer per frame."""
        return self.samples_per_frame // math.prod(self.encoder.upsampling_ratios)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Qwen12Config:
        """Read the codec's `config.json`. Raises `CheckpointMismatchError` for a missing or invalid value."""
        if values.get("model_type") != MODEL_TYPE:
            raise invalid(
                f"{SOURCE}: model_type",
                values.get("model_type"),
                f"{MODEL_TYPE}; other codecs, such as that of the 25 Hz models, are not supported",
            )
        decoder = _part(DecoderConfig, values, "decoder_config", _FIXED_DECODER)
        encoder = _part(EncoderConfig, values, "encoder_config", _FIXED_ENCODER)
        rate, frame = (
            read_size(f"{SOURCE}: {key}", values.get(key)) for key in ("output_sample_rate", "decode_upsample_rate")
        )
        config = cls(rate, frame, decoder, encoder)
        config._check(values)
        return config

    def _check(self, values: Mapping[str, Any]) -> None:
        decoder, encoder, books = self.decoder, self.encoder, self.num_codebooks
        expected = {
            "input_sample_rate": self.sample_rate,
            "encode_downsample_rate": self.samples_per_frame,
            "encoder_valid_num_quantizers": books,
        }
        for key, value in expected.items():
            if values.get(key) != value:
                raise invalid(f"{SOURCE}: {key}", values.get(key), f"{value}, as in the decoder")
        steps = math.prod(decoder.upsampling_ratios) * math.prod(decoder.upsample_rates)
        if steps != self.samples_per_frame or self.samples_per_frame % math.prod(encoder.upsampling_ratios):
            raise CheckpointMismatchError(
                f"{SOURCE}: decode_upsample_rate={self.samples_per_frame} must be the product of the decoder's "
                f"upsampling_ratios {decoder.upsampling_ratios} and upsample_rates {decoder.upsample_rates}, and a "
                f"multiple of the product of the encoder's upsampling_ratios {encoder.upsampling_ratios}"
            )
        if decoder.codebook_dim % 2 or decoder.decoder_dim % 2 ** len(decoder.upsample_rates):
            raise CheckpointMismatchError(
                f"{SOURCE}: codebook_dim={decoder.codebook_dim} must be even, and decoder_dim={decoder.decoder_dim} a "
                f"multiple of {2 ** len(decoder.upsample_rates)}"
            )
        if encoder.num_quantizers < books or encoder.codebook_size != decoder.codebook_size:
            raise CheckpointMismatchError(
                f"{SOURCE}: the encoder has {encoder.num_quantizers} codebooks with {encoder.codebook_size} entries "
                f"each; it needs at least {books} with {decoder.codebook_size} entries each, as the decoder has"
            )


def _part(kind: type[Any], values: Mapping[str, Any], key: str, fixed: Mapping[str, Any]) -> Any:
    source, part = f"{SOURCE}: {key}", values.get(key)
    if not isinstance(part, Mapping):
        raise invalid(source, part, "an object")
    for name, only in fixed.items():
        if part.get(name, only) != only:
            raise CheckpointMismatchError(
                f"{source}.{name}={reprlib.repr(part[name])} is not supported; it must be {only}"
            )
    config = kind(**read_fields(kind, part, source))
    config.check(source)
    return config


def read_qwen12_config(folder: Path) -> Qwen12Config:
    """Read `config.json` of the codec's folder in a checkpoint. Raises `CheckpointError`."""
    return Qwen12Config.from_json(read_json(folder / "config.json"))
