"""What a checkpoint's `config.json` says of a SpeechT5 model. Read, never assumed; checked before any weight is."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.base import Description
from s1_mini.families.mel.settings import FOLDERS
from s1_mini.families.mel.voice import voice_format
from s1_mini.layers.json_config import MAX_LAYERS, MAX_SIZE, read_number, read_size
from s1_mini.weights.directory import find_model, read_json

AROUND = 2  # tokens around a text: the space before it and its end
MIN_PIECE_BYTES = 4  # a character


def _size(key: str, default: int, most: int = MAX_SIZE, least: int = 1) -> int:
    """Declare a field that is read from `key` of the JSON; transformers' default, which a config may leave out."""
    return field(default=default, metadata={"read": partial(_read_size, key, most, least)})


def _number(key: str, default: float, most: float) -> float:
    return field(default=default, metadata={"read": partial(_read_number, key, most)})


def _read_size(key: str, most: int, least: int, values: Mapping[str, Any], default: int) -> int:
    return read_size(f"config.json: {key}", values.get(key, default), most, least=least)


def _read_number(key: str, most: float, values: Mapping[str, Any], default: float) -> float:
    value = values.get(key, default)
    return read_number(f"config.json: {key}", value, lambda each: 0 <= each <= most, f"a number in [0, {most:g}]")


@dataclass(frozen=True)
class MelConfig:
    """Architecture of one model."""

    vocab_size: int = _size("vocab_size", 81)
    width: int = _size("hidden_size", 768)
    heads: int = _size("encoder_attention_heads", 12)
    encoder_layers: int = _size("encoder_layers", 12, MAX_LAYERS)
    encoder_ffn: int = _size("encoder_ffn_dim", 3072)
    decoder_layers: int = _size("decoder_layers", 6, MAX_LAYERS)
    decoder_ffn: int = _size("decoder_ffn_dim", 3072)
    norm_eps: float = _number("layer_norm_eps", 1e-5, 1.0)
    num_bins: int = _size("num_mel_bins", 80)
    frames_per_step: int = _size("reduction_factor", 2, MAX_LAYERS)
    prenet_layers: int = _size("speech_decoder_prenet_layers", 2, MAX_LAYERS)
    prenet_units: int = _size("speech_decoder_prenet_units", 256)
    prenet_dropout: float = _number("speech_decoder_prenet_dropout", 0.5, 0.95)
    postnet_layers: int = _size("speech_decoder_postnet_layers", 5, MAX_LAYERS)
    postnet_units: int = _size("speech_decoder_postnet_units", 256)
    postnet_taps: int = _size("speech_decoder_postnet_kernel", 5, MAX_LAYERS)
    speaker_size: int = _size("speaker_embedding_dim", 512)
    max_text: int = _size("max_text_positions", 450)  # tokens
    max_steps: int = _size("max_speech_positions", 4000)  # of the decoder
    max_distance: int = _size("encoder_max_relative_position", 160)  # of tokens; farther ones are all the same
    eos: int = _size("eos_token_id", 2, least=0)

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MelConfig:
        """Read `config.json`. Raises `CheckpointMismatchError` for a value of the wrong type, or impossible."""
        config = cls(**{each.name: each.metadata["read"](values, each.default) for each in fields(cls)})
        if config.eos >= config.vocab_size:
            raise CheckpointMismatchError(
                f"config.json: eos_token_id={config.eos} is none of vocab_size={config.vocab_size} tokens"
            )
        decoder_heads = _read_size("decoder_attention_heads", MAX_SIZE, 1, values, config.heads)
        if decoder_heads != config.heads or config.width % config.heads or config.width % 2:
            raise CheckpointMismatchError(
                f"config.json: hidden_size={config.width} must be even and a multiple of encoder_attention_heads="
                f"{config.heads}, which decoder_attention_heads={decoder_heads} must equal"
            )
        if values.get("hidden_act", "gelu") != "gelu":
            raise CheckpointMismatchError(
                f"config.json: hidden_act={reprlib.repr(values['hidden_act'])} is not gelu, the one that is known"
            )
        if config.postnet_taps % 2 == 0 or config.postnet_layers < 2:
            raise CheckpointMismatchError(
                "config.json: speech_decoder_postnet_kernel must be odd, and there must be two layers of it or more"
            )
        return config


KEY = "vocoder"  # of config.json, where the vocoder lies inside the model's own files


@dataclass(frozen=True)
class VocoderFiles:
    """A vocoder's config, the folder of its tensors, and what their names begin with there."""

    config: HifiGanConfig
    folder: Path
    prefix: str = ""

    @property
    def weights(self) -> Path:
        """Return the file that holds its tensors. Raises `CheckpointFileError`."""
        return find_model(self.folder)


def find_vocoder(directory: Path) -> VocoderFiles:
    """Find the vocoder of a checkpoint: in a folder beside the model, or inside it. Raises `CheckpointError`."""
    for name in FOLDERS:
        folder = directory / name
        if folder.is_dir():
            return VocoderFiles(HifiGanConfig.from_json(read_json(folder / "config.json")), folder)
    told = read_json(directory / "config.json").get(KEY)
    if not isinstance(told, dict):
        raise CheckpointFileError(
            f"{directory} has no vocoder: neither a folder {' or '.join(f'{name}/' for name in FOLDERS)} with its "
            f"config.json and weights, nor {KEY!r} in its own config.json"
        )
    return VocoderFiles(HifiGanConfig.from_json(told), directory, f"{KEY}.")


def read_configs(directory: Path) -> tuple[MelConfig, VocoderFiles]:
    """Read both configs, and no weights. Raises `CheckpointError`."""
    config, vocoder = MelConfig.from_json(read_json(directory / "config.json")), find_vocoder(directory)
    if config.num_bins != vocoder.config.num_bins:
        raise CheckpointMismatchError(
            f"the vocoder takes {vocoder.config.num_bins} mel bins; config.json has num_mel_bins={config.num_bins}"
        )
    return config, vocoder


def describe(directory: Path) -> Description:
    config, vocoder = read_configs(directory)
    rate = vocoder.config.sample_rate
    longest = max(MIN_PIECE_BYTES, config.max_text - AROUND)
    return Description(rate, voice_format(config.speaker_size, rate), sampling=(), max_piece_bytes=longest)
