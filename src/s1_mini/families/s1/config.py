"""What a checkpoint's `config.json` says of an S1 model. Read, never assumed; checked before any weight is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.codecs.dac.config import DacConfig, read_dac_config
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import Description
from s1_mini.layers.json_config import MAX_LAYERS, MAX_SIZE, read_flag, read_number, read_size
from s1_mini.voices.format import TensorFormat, Tensors, VoiceFormat, fingerprint
from s1_mini.weights.directory import find_tensors, read_json

if TYPE_CHECKING:
    from s1_mini.layers.transformer import BlockConfig

# Upstream slices every residual codebook's logits to this many, whatever the fast head's size
# (decode_one_token_ar at d3df505).
RESIDUAL_CODEBOOK_SIZE = 1024


@dataclass(frozen=True)
class S1Config:
    """Architecture of one dual-AR model. Build it with `from_json`."""

    vocab_size: int
    num_layers: int
    slow: BlockConfig
    num_fast_layers: int
    fast: BlockConfig
    codebook_size: int
    num_codebooks: int
    max_seq_len: int
    rope_base: float
    tie_word_embeddings: bool
    scale_codebook_embeddings: bool
    norm_fastlayer_input: bool
    semantic_begin: int | None
    semantic_end: int | None

    @property
    def residual_codebook_size(self) -> int:
        """Codes that a residual codebook of the fast head can give."""
        return min(RESIDUAL_CODEBOOK_SIZE, self.codebook_size)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> S1Config:
        """Read `config.json`. What the fast stack does not say it has from the slow one, as upstream fills it in.

        Raises `CheckpointMismatchError` for a value that is missing, of the wrong type, or impossible.
        """

        def size(name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
            return read_size(*_given(values, name, default), most)

        def flag(name: str, *, default: bool = False) -> bool:
            return read_flag(*_given(values, name, default))

        slow = _block(values, "", None)
        return cls(
            vocab_size=size("vocab_size"),
            num_layers=size("n_layer", most=MAX_LAYERS),
            slow=slow,
            num_fast_layers=size("n_fast_layer", 4, most=MAX_LAYERS),
            fast=_block(values, "fast_", slow),
            codebook_size=size("codebook_size"),
            num_codebooks=size("num_codebooks", most=MAX_LAYERS),
            max_seq_len=size("max_seq_len"),
            rope_base=_positive(values, "rope_base", 10_000.0),
            tie_word_embeddings=flag("tie_word_embeddings", default=True),
            scale_codebook_embeddings=flag("scale_codebook_embeddings"),
            norm_fastlayer_input=flag("norm_fastlayer_input"),
            semantic_begin=values.get("semantic_begin_id", values.get("semantic_start_token_id")),
            semantic_end=values.get("semantic_end_id", values.get("semantic_end_token_id")),
        )

    def __post_init__(self) -> None:
        if self.num_codebooks < 2:
            raise CheckpointMismatchError("config.json: num_codebooks must be at least 2")


def _block(values: Mapping[str, Any], prefix: str, like: BlockConfig | None) -> BlockConfig:
    """Read one stack's block; what it does not say it has from `like`."""

    def size(name: str, default: int | None = None) -> int:
        return read_size(*_given(values, prefix + name, default))

    def flag(name: str, *, default: bool) -> bool:
        return read_flag(*_given(values, prefix + name, default))

    dim, heads = size("dim", like.dim if like else None), size("n_head", like.num_heads if like else None)
    stated = values.get(f"{prefix}n_local_heads")
    kv_heads = heads if stated == -1 else size("n_local_heads", like.num_kv_heads if like else heads)
    if heads % kv_heads:
        raise CheckpointMismatchError(f"config.json: {prefix}n_head={heads} is no multiple of n_local_heads={kv_heads}")
    # Upstream's field is 64 when left out and dim / n_head when null.
    head_dim = size("head_dim", like.head_dim if like else dim // heads if "head_dim" in values else 64)
    if head_dim % 2:
        raise CheckpointMismatchError(f"config.json: {prefix}head_dim={head_dim} is odd; rotary positions need pairs")
    from s1_mini.layers.transformer import BlockConfig  # imports torch, which is not needed to describe a checkpoint

    return BlockConfig(
        dim=dim,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=size("intermediate_size", like.intermediate_size if like else _default_intermediate(dim)),
        norm_eps=_positive(values, "norm_eps", 1e-5),
        qkv_bias=flag("attention_qkv_bias", default=bool(like and like.qkv_bias)),
        o_bias=flag("attention_o_bias", default=bool(like and like.o_bias)),
        qk_norm=flag("attention_qk_norm", default=bool(like and like.qk_norm)),
    )


def _default_intermediate(dim: int) -> int:
    """Two thirds of four times dim, rounded up to a multiple of 256 (LLaMA's rule, upstream's default)."""
    return -(-int(2 * 4 * dim / 3) // 256) * 256


def _given(values: Mapping[str, Any], name: str, default: Any) -> tuple[str, Any]:
    value = values.get(name)
    return f"config.json: {name}", default if value is None else value


def _positive(values: Mapping[str, Any], name: str, default: float) -> float:
    return read_number(*_given(values, name, default), lambda value: 0 < value < math.inf, "a positive number")


def read_configs(directory: Path) -> tuple[S1Config, DacConfig]:
    """Read both configs of a checkpoint, and no weights. Raises `CheckpointError`."""
    return S1Config.from_json(read_json(directory / "config.json")), read_dac_config(directory)


def describe(directory: Path) -> Description:
    codec = read_dac_config(directory)
    voice = VoiceFormat(
        tensors={"codes": TensorFormat((codec.num_codebooks, None), is_integer=True)},
        encoder=fingerprint([find_tensors(directory, "codec")]),
        sample_rate=codec.sample_rate,
        seconds=lambda shapes: shapes["codes"][1] * codec.samples_per_frame / codec.sample_rate,
        fault=partial(_fault, codec),
    )
    return Description(codec.sample_rate, voice)


def _fault(codec: DacConfig, tensors: Tensors) -> str:
    codes = tensors["codes"]
    limits = [codec.semantic_codebook_size] + [codec.codebook_size] * (len(codes) - 1)
    if any(row.min() < 0 or row.max() >= limit for row, limit in zip(codes, limits, strict=True)):
        return "has codes that this codec has not; it was encoded by another"
    return ""
