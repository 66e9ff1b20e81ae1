"""The architecture and the ids in a Qwen3-TTS checkpoint's `config.json`, checked before any weight is read.

Sizes and ids have no defaults, because the defaults in the original code are not the published values.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from s1_mini.alignment.head import AlignmentHead
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.alignment import read_head
from s1_mini.families.codec_lm.generation import read_generation
from s1_mini.families.qwen3.settings import Qwen3Settings
from s1_mini.layers.json_config import MAX_LAYERS, POSITIVE, invalid, read_flag, read_number, read_size
from s1_mini.types import SamplingParams
from s1_mini.weights.directory import read_json

if TYPE_CHECKING:
    from s1_mini.layers.transformer import BlockConfig

Kind = Literal["base", "custom_voice", "voice_design"]
AUTO = "auto"  # the model detects the language
CODEC_IDS = ("pad_id", "bos_id", "eos_token_id", "think_id", "nothink_id", "think_bos_id", "think_eos_id")
NUM_CONTROLS = 1024  # control ids after the first codebook's codes; only the end is ever sampled


@dataclass(frozen=True)
class TextIds:
    """Ids of the text vocabulary that prompts need."""

    im_start: int
    im_end: int
    assistant: int
    pad: int
    begin: int
    end: int


@dataclass(frozen=True)
class CodecIds:
    """Ids of the first codebook's vocabulary after the codes."""

    pad: int
    begin: int
    end: int
    think: int
    no_think: int
    think_begin: int
    think_end: int


@dataclass(frozen=True)
class Defaults:
    """Sampling defaults of `generation_config.json`; absent keys have the original's values."""

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    max_new_tokens: int = 2048
    depth_temperature: float = 0.9
    depth_top_k: int = 50
    depth_top_p: float = 1.0

    @classmethod
    def read(cls, directory: Path) -> Defaults:
        """Read the file, if it exists. If it turns sampling off, the temperature is 0. Raises `CheckpointError`."""
        code = read_generation(
            directory, SamplingParams(0.9, top_p=1.0, repetition_penalty=1.05, max_new_tokens=2048, top_k=50)
        )
        depth = read_generation(directory, SamplingParams(0.9, top_p=1.0, top_k=50), prefix="subtalker_")
        return cls(
            temperature=code.temperature,
            top_k=code.top_k,
            top_p=code.top_p,
            repetition_penalty=code.repetition_penalty,
            max_new_tokens=code.max_new_tokens,
            depth_temperature=depth.temperature,
            depth_top_k=depth.top_k,
            depth_top_p=depth.top_p,
        )

    def with_settings(self, settings: Qwen3Settings) -> Defaults:
        """Return these defaults, replaced by `settings` where those are not None."""
        given = {
            f"depth_{name}": getattr(settings, f"predictor_{name}")
            for name in ("temperature", "top_k", "top_p")
            if getattr(settings, f"predictor_{name}") is not None
        }
        return replace(self, **given)


@dataclass(frozen=True)
class Qwen3Config:
    """Architecture and ids of one model. Build it with `from_json`."""

    kind: Kind
    is_small: bool  # 0.6B
    backbone: BlockConfig
    depth: BlockConfig
    num_layers: int
    num_depth_layers: int
    num_codebooks: int
    code_size: int  # codes of each codebook
    vocab_size: int  # codes and other ids of the first codebook
    text_vocab_size: int
    text_dim: int
    max_seq_len: int
    rope_base: float
    depth_rope_base: float
    text: TextIds
    codec: CodecIds
    languages: Mapping[str, int]  # ids by name, without dialects
    speakers: Mapping[str, int]  # ids of presets by name
    dialects: Mapping[str, int]  # language ids of presets that speak a dialect, by name of the preset
    speaker_encoder: Mapping[str, Any] = field(default_factory=dict)  # empty unless the model clones
    norm_fastlayer_input: bool = True
    alignment: AlignmentHead | None = None  # of the backbone

    @property
    def takes_instructions(self) -> bool:
        return self.kind == "voice_design" or (self.kind == "custom_voice" and not self.is_small)

    @property
    def has_voices(self) -> bool:
        """Whether requests have a preset or a clone; otherwise each prompt is spoken in a new voice."""
        return self.kind == "base" or (self.kind == "custom_voice" and bool(self.speakers))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Qwen3Config:
        """Read `config.json`. Raises `CheckpointMismatchError` for a missing or invalid value."""
        kind, is_small = read_kind(values)
        talker = _part(values, "talker_config")
        depth = _part(talker, "code_predictor_config", "talker_config.")

        def size(part: Mapping[str, Any], name: str, most: int = 2**20, least: int = 1) -> int:
            prefix = "talker_config." if part is talker else ""
            return read_size(f"config.json: {prefix}{name}", part.get(name), most, least=least)

        def base(part: Mapping[str, Any]) -> float:
            return read_number("config.json: rope_theta", part.get("rope_theta"), *POSITIVE)

        vocab, text_vocab = size(talker, "vocab_size"), size(talker, "text_vocab_size")
        code_size = size(depth, "vocab_size", vocab - 1)
        num_codebooks = size(talker, "num_code_groups", MAX_LAYERS, least=2)
        _check_numbers_of_codes(vocab, code_size, num_codebooks, size(depth, "num_code_groups", MAX_LAYERS))

        def text_id(name: str) -> int:
            return size(values, f"{name}_token_id", text_vocab - 1, least=0)

        def codec_id(name: str) -> int:
            return size(talker, f"codec_{name}", vocab - 1, least=code_size)

        languages, speakers = (_ids(talker, key, vocab) for key in ("codec_language_id", "spk_id"))
        return cls(
            kind=kind,
            is_small=is_small,
            backbone=_block(talker),
            depth=_block(depth),
            num_layers=size(talker, "num_hidden_layers", MAX_LAYERS),
            num_depth_layers=size(depth, "num_hidden_layers", MAX_LAYERS),
            num_codebooks=num_codebooks,
            code_size=code_size,
            vocab_size=vocab,
            text_vocab_size=text_vocab,
            text_dim=size(talker, "text_hidden_size"),
            max_seq_len=size(talker, "max_position_embeddings"),
            rope_base=base(talker),
            depth_rope_base=base(depth),
            text=TextIds(*map(text_id, ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos"))),
            codec=CodecIds(*map(codec_id, CODEC_IDS)),
            languages={name: each for name, each in languages.items() if "dialect" not in name},
            speakers=speakers,
            dialects=_dialects(talker, languages, speakers),
            speaker_encoder=_part(values, "speaker_encoder_config") if kind == "base" else {},
            alignment=read_head(
                values, *(size(talker, f"num_{each}") for each in ("hidden_layers", "attention_heads"))
            ),
        )


def read_kind(values: Mapping[str, Any]) -> tuple[Kind, bool]:
    """Return the kind of a model, and whether it is the small one. Raises `CheckpointMismatchError`."""
    if (tokenizer := values.get("tokenizer_type")) != "qwen3_tts_tokenizer_12hz":
        raise invalid(
            "config.json: tokenizer_type", tokenizer, "qwen3_tts_tokenizer_12hz; 25 Hz models are not supported"
        )
    if (kind := values.get("tts_model_type")) not in get_args(Kind):
        raise invalid("config.json: tts_model_type", kind, f"one of {', '.join(get_args(Kind))}")
    if not isinstance(size := values.get("tts_model_size"), str):
        raise invalid("config.json: tts_model_size", size, "a string such as 0b6")
    return cast(Kind, kind), size == "0b6"


def _check_numbers_of_codes(vocab: int, code_size: int, num_codebooks: int, of_depth: int) -> None:
    if vocab - code_size != NUM_CONTROLS:
        raise CheckpointMismatchError(
            f"config.json: talker_config.vocab_size={vocab} must be {NUM_CONTROLS} more than "
            f"code_predictor_config.vocab_size={code_size}, because the additional ids are control tokens"
        )
    if of_depth != num_codebooks:
        raise CheckpointMismatchError("config.json: num_code_groups differs between talker and code predictor")


def read_config(directory: Path) -> Qwen3Config:
    return Qwen3Config.from_json(read_json(directory / "config.json"))


def _part(values: Mapping[str, Any], key: str, prefix: str = "") -> Mapping[str, Any]:
    if not isinstance(values.get(key), Mapping):
        raise invalid(f"config.json: {prefix}{key}", values.get(key), "an object")
    part: Mapping[str, Any] = values[key]
    return part


def _ids(talker: Mapping[str, Any], key: str, vocab: int) -> dict[str, int]:
    """Read ids by name in lower case. Some tools write an id as a list with one id."""
    return {
        name.lower(): read_size(
            f"config.json: {key}.{name}", value[0] if isinstance(value, list) and value else value, vocab - 1, least=0
        )
        for name, value in _part(talker, key, "talker_config.").items()
    }


def _dialects(talker: Mapping[str, Any], languages: Mapping[str, int], speakers: Mapping[str, int]) -> dict[str, int]:
    named = {name.lower(): value for name, value in _part(talker, "spk_is_dialect", "talker_config.").items() if value}
    for name, dialect in named.items():
        if name not in speakers or not isinstance(dialect, str) or dialect not in languages:
            raise CheckpointMismatchError(
                f"config.json: spk_is_dialect.{name}={reprlib.repr(dialect)} must name a speaker and a language"
            )
    return {name: languages[dialect] for name, dialect in named.items()}


def _block(values: Mapping[str, Any]) -> BlockConfig:
    """Read the block of one transformer."""
    from s1_mini.layers.transformer import BlockConfig  # imports torch, which importing this module does not

    def size(key: str) -> int:
        return read_size(f"config.json: {key}", values.get(key))

    heads, kv_heads, head_dim = size("num_attention_heads"), size("num_key_value_heads"), size("head_dim")
    if heads % kv_heads:
        raise CheckpointMismatchError(
            f"config.json: num_attention_heads={heads} must be a multiple of num_key_value_heads={kv_heads}"
        )
    if head_dim % 2:
        raise CheckpointMismatchError(f"config.json: head_dim={head_dim} must be even for rotary embeddings")
    if read_flag("config.json: attention_bias", values.get("attention_bias", False)):
        raise CheckpointMismatchError("config.json: attention_bias=true is not supported")
    return BlockConfig(
        dim=size("hidden_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=size("intermediate_size"),
        norm_eps=read_number("config.json: rms_norm_eps", values.get("rms_norm_eps"), *POSITIVE),
        qk_norm=True,
        qk_norm_rounds_last=False,
    )
