"""The architecture in an S1 checkpoint's `config.json`, checked before any weight is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from s1_mini.alignment.head import AlignmentHead
from s1_mini.codecs.dac.config import DacConfig, read_dac_config
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.alignment import read_head
from s1_mini.families.base import Description
from s1_mini.families.codec_lm.generation import read_generation
from s1_mini.families.s1.settings import AUDIO8_FILES, SMALL_FILES
from s1_mini.layers.json_config import (
    MAX_LAYERS,
    POSITIVE,
    flag,
    invalid,
    number,
    read_fields,
    read_flag,
    read_number,
    read_size,
    size,
)
from s1_mini.text.form import MIN_PIECE_BYTES
from s1_mini.types import SamplingParams
from s1_mini.voices.format import TensorFormat, Tensors, VoiceFormat, fingerprint
from s1_mini.weights.directory import find_tensors, read_json

if TYPE_CHECKING:
    from s1_mini.layers.transformer import BlockConfig

# S1's original never samples residual codes from this number on, however large the depth transformer's head is
# (decode_one_token_ar at d3df505).
RESIDUAL_CODEBOOK_SIZE = 1024
MAX_RAS_WINDOW = 256  # frames
AUDIO8_SAMPLING = SamplingParams(0.7, top_p=0.9, repetition_penalty=1.0, max_new_tokens=512, top_k=50)
# Sizes of the published Audio8 codec that differ from S1's. Each key of config.json is one of these with `codec_`.
AUDIO8_POST = {"post_n_layer": 8, "post_n_head": 16, "post_n_local_heads": 8, "post_intermediate_size": 1216}
# `config.json` of Audio8-TTS-Preview-0.6b. As in the original, these are the defaults of every `arktts`.
AUDIO8_MODEL = {
    "model_type": "arktts",
    "vocab_size": 155_776,
    "dim": 896,
    "n_layer": 24,
    "n_head": 14,
    "n_local_heads": 2,
    "head_dim": 64,
    "intermediate_size": 4864,
    "n_fast_layer": 4,
    "fast_dim": 896,
    "fast_n_head": 14,
    "fast_n_local_heads": 2,
    "fast_head_dim": 64,
    "fast_intermediate_size": 4864,
    "attention_qkv_bias": True,
    "attention_qk_norm": False,
    "attention_o_bias": False,
    "fast_attention_qkv_bias": False,
    "fast_attention_qk_norm": False,
    "fast_attention_o_bias": False,
    "norm_fastlayer_input": True,
    "codebook_size": 4096,
    "num_codebooks": 10,
    "rope_base": 1_000_000,
    "norm_eps": 1e-6,
    "max_seq_len": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 151_645,
    "semantic_begin_id": 151_678,
    "semantic_end_id": 155_773,
    "ras_window_size": 10,
    "ras_temperature": 1.0,
    "ras_top_p": 0.9,
    "codec_sample_rate": 44_100,
    "codec_frame_size": 2048,
    **{f"codec_{name}": size for name, size in AUDIO8_POST.items()},
}
# Keys for which the original has no other value, or ignores it, or for which this engine has no other.
_FIXED = {
    "slow_backbone": "arktts",
    "tie_word_embeddings": True,
    "scale_codebook_embeddings": False,
    "codec_filename": "codec.pth",
}


class Dialect(NamedTuple):
    """How models of this architecture differ, except in sizes; the defaults are S1's."""

    files: tuple[str, ...] = SMALL_FILES  # names of the small files; the last one has the control tokens
    chat: bool = False  # whether a prompt is a chat (`prompt.py`)


S1 = Dialect()
AUDIO8 = Dialect(AUDIO8_FILES, chat=True)


class Ras(NamedTuple):
    """Repetition-aware sampling: a semantic token of the last frames is drawn once more, with these parameters.

    The second draw has the request's top-k, and its token is final, even if it is also one of the last frames'.
    """

    window: int  # number of last frames; the first frame of an utterance is not one of them
    temperature: float
    top_p: float


@dataclass(frozen=True)
class S1Config:
    """Architecture of one model, built with `from_json`."""

    backbone: BlockConfig
    depth: BlockConfig
    vocab_size: int = size()
    num_layers: int = size(key="n_layer", most=MAX_LAYERS)
    codebook_size: int = size()
    num_codebooks: int = size(most=MAX_LAYERS, least=2)
    max_seq_len: int = size()
    num_depth_layers: int = size(4, "n_fast_layer", MAX_LAYERS)
    rope_base: float = number(10_000.0, "rope_base", *POSITIVE)
    tie_word_embeddings: bool = flag(True)
    scale_codebook_embeddings: bool = flag(False)
    norm_fastlayer_input: bool = flag(False)
    alignment: AlignmentHead | None = None
    semantic_begin: int | None = None
    semantic_end: int | None = None
    end: int | None = None  # id of the end token, if the file has it
    dialect: Dialect = S1
    ras: Ras | None = None  # models with it have top-k and no repetition penalty
    residual_limit: int | None = RESIDUAL_CODEBOOK_SIZE  # None: residual codes come from the whole head

    @property
    def residual_codebook_size(self) -> int:
        """Number of codes of a residual codebook that the depth transformer can sample."""
        return self.codebook_size if self.residual_limit is None else min(self.residual_limit, self.codebook_size)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> S1Config:
        """Read `config.json`. As in the original, the depth transformer inherits missing values from the backbone.

        Raises `CheckpointMismatchError` for a missing or invalid value.
        """
        values = completed(values)
        dialect = read_dialect(values)
        backbone, sizes = _block(values, "", None), read_fields(cls, values)
        return cls(
            backbone=backbone,
            depth=_block(values, "fast_", backbone),
            semantic_begin=values.get("semantic_begin_id", values.get("semantic_start_token_id")),
            semantic_end=values.get("semantic_end_id", values.get("semantic_end_token_id")),
            end=values.get("eos_token_id") if dialect.chat else None,
            dialect=dialect,
            ras=_read_ras(values) if dialect.chat else None,
            residual_limit=None if dialect.chat else RESIDUAL_CODEBOOK_SIZE,
            alignment=read_head(values, sizes["num_layers"], backbone.num_heads),
            **sizes,
        )


def _block(values: Mapping[str, Any], prefix: str, like: BlockConfig | None) -> BlockConfig:
    """Read the sizes of one transformer's blocks; missing values are those of `like`, if given, otherwise defaults."""
    from s1_mini.layers.transformer import BlockConfig  # imports torch, which is not needed to describe a checkpoint

    def entry(key: str, field: str, default: Any) -> tuple[str, Any]:
        value = values.get(prefix + key)
        if value is None:
            value = getattr(like, field) if like else default
        return f"config.json: {prefix}{key}", value

    dim, heads = read_size(*entry("dim", "dim", None)), read_size(*entry("n_head", "num_heads", None))
    is_ungrouped = values.get(f"{prefix}n_local_heads") == -1
    kv_heads = heads if is_ungrouped else read_size(*entry("n_local_heads", "num_kv_heads", heads))
    if heads % kv_heads:
        raise CheckpointMismatchError(
            f"config.json: {prefix}n_head={heads} must be a multiple of n_local_heads={kv_heads}"
        )
    # In the original, an absent head_dim is 64, and a head_dim of null is dim / n_head.
    head_dim = read_size(*entry("head_dim", "head_dim", dim // heads if "head_dim" in values else 64))
    if head_dim % 2:
        raise CheckpointMismatchError(f"config.json: {prefix}head_dim={head_dim} must be even for rotary embeddings")
    # Two thirds of four times dim, rounded up to a multiple of 256: LLaMA's rule, which the original uses by default.
    inner = -(-int(2 * 4 * dim / 3) // 256) * 256
    eps = values.get("norm_eps")
    return BlockConfig(
        dim=dim,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=read_size(*entry("intermediate_size", "intermediate_size", inner)),
        norm_eps=read_number("config.json: norm_eps", 1e-5 if eps is None else eps, *POSITIVE),
        qkv_bias=read_flag(*entry("attention_qkv_bias", "qkv_bias", False)),
        o_bias=read_flag(*entry("attention_o_bias", "o_bias", False)),
        qk_norm=read_flag(*entry("attention_qk_norm", "qk_norm", False)),
    )


def _read_ras(values: Mapping[str, Any]) -> Ras:
    window, temperature, top_p = (f"ras_{name}" for name in ("window_size", "temperature", "top_p"))
    share = (lambda value: 0 < value <= 1), "a number above 0 and up to 1"
    return Ras(
        read_size(f"config.json: {window}", values[window], MAX_RAS_WINDOW),
        read_number(f"config.json: {temperature}", values[temperature], *POSITIVE),
        read_number(f"config.json: {top_p}", values[top_p], *share),
    )


def read_dialect(values: Mapping[str, Any]) -> Dialect:
    """Return the dialect of a `config.json`."""
    return AUDIO8 if values.get("model_type") == "arktts" else S1


def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a `config.json` in which absent keys of Audio8 have the published values.

    Raises `CheckpointMismatchError` for a value that this engine does not support.
    """
    if not read_dialect(values).chat:
        return values
    stated = {key: value for key, value in values.items() if value is not None}
    for key, value in _FIXED.items():
        if stated.get(key, value) != value:
            raise invalid(f"config.json: {key}", stated[key], f"{json.dumps(value)}, the only supported value")
    return AUDIO8_MODEL | stated


def read_configs(directory: Path) -> tuple[S1Config, DacConfig]:
    """Read the configs of model and codec, but no weights. Raises `CheckpointError`."""
    values = completed(read_json(directory / "config.json"))
    return S1Config.from_json(values), _read_codec(directory, values)


def _read_codec(directory: Path, values: Mapping[str, Any]) -> DacConfig:
    """Read the codec's config, and check the codec's rates in `values`, those of `config.json`."""
    codec = read_dac_config(directory, codec_sizes(values))
    if not read_dialect(values).chat:
        return codec
    for key, actual in (("codec_sample_rate", codec.sample_rate), ("codec_frame_size", codec.samples_per_frame)):
        if values.get(key) not in (None, actual):
            raise invalid(f"config.json: {key}", values[key], f"{actual}, as in the codec")
    return codec


def codec_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the codec that a `config.json` has: those of Audio8's post module."""
    if not read_dialect(values).chat:
        return {}
    stated = completed(values)
    return {name: read_size(f"config.json: codec_{name}", stated[f"codec_{name}"]) for name in AUDIO8_POST}


def describe(directory: Path) -> Description:
    config = completed(read_json(directory / "config.json"))
    codec, has_head = _read_codec(directory, config), config.get("alignment") is not None
    voice = VoiceFormat(
        tensors={"codes": TensorFormat((codec.num_codebooks, None), is_integer=True)},
        encoder=codec.encoder_id or fingerprint([find_tensors(directory, "codec")]),
        sample_rate=codec.sample_rate,
        seconds=lambda shapes: shapes["codes"][1] * codec.samples_per_frame / codec.sample_rate,
        fault=partial(_fault, codec),
        needs_transcript=True,
        always_needs_transcript=read_dialect(config).chat,
    )
    if not read_dialect(config).chat:
        return Description(codec.sample_rate, voice, word_times=has_head)
    defaults = read_generation(directory, AUDIO8_SAMPLING)
    # As in `costs.py`, a byte of text takes up to three frames, and a position of its own.
    longest = min(read_size("config.json: max_seq_len", config["max_seq_len"]) // 4, defaults.max_new_tokens // 3)
    return Description(
        codec.sample_rate,
        voice,
        sampling=("temperature", "top_p", "top_k"),
        max_piece_bytes=max(longest, MIN_PIECE_BYTES),
        word_times=has_head,
        defaults=replace(defaults, repetition_penalty=1.0),
    )


def _fault(codec: DacConfig, tensors: Tensors) -> str:
    codes = tensors["codes"]
    limits = [codec.semantic_codebook_size] + [codec.codebook_size] * (len(codes) - 1)
    if any(row.min() < 0 or row.max() >= limit for row, limit in zip(codes, limits, strict=True)):
        return "has codes outside this codec's codebooks; it was encoded by a different codec"
    return ""
