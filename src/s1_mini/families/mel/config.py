"""What a checkpoint's `config.json` says of a SpeechT5 model. Read, never assumed; checked before any weight is."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class MelConfig:
    """Architecture of one model. Defaults are transformers', which a config may leave out."""

    vocab_size: int = 81
    width: int = 768
    heads: int = 12
    encoder_layers: int = 12
    encoder_ffn: int = 3072
    decoder_layers: int = 6
    decoder_ffn: int = 3072
    norm_eps: float = 1e-5
    num_bins: int = 80
    frames_per_step: int = 2
    prenet_layers: int = 2
    prenet_units: int = 256
    prenet_dropout: float = 0.5
    postnet_layers: int = 5
    postnet_units: int = 256
    postnet_taps: int = 5
    speaker_size: int = 512
    max_text: int = 450  # tokens
    max_steps: int = 4000  # of the decoder
    max_distance: int = 160  # of tokens, beyond which the encoder knows but that they are far
    eos: int = 2

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MelConfig:
        """Read `config.json`. Raises `CheckpointMismatchError` for a value of the wrong type, or impossible."""
        sizes = {field: _size(values, name, getattr(cls, field)) for field, name in _SIZES.items()}
        layers = {field: _size(values, name, getattr(cls, field), MAX_LAYERS) for field, name in _LAYERS.items()}
        config = cls(
            **sizes,
            **layers,
            norm_eps=_number(values, "layer_norm_eps", cls.norm_eps, 1.0),
            prenet_dropout=_number(values, "speech_decoder_prenet_dropout", cls.prenet_dropout, 0.95),
            eos=_size(values, "eos_token_id", cls.eos, least=0),
        )
        if config.eos >= config.vocab_size:
            raise CheckpointMismatchError(
                f"config.json: eos_token_id={config.eos} is none of vocab_size={config.vocab_size} tokens"
            )
        decoder_heads = _size(values, "decoder_attention_heads", config.heads)
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


_SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "heads": "encoder_attention_heads",
    "encoder_ffn": "encoder_ffn_dim",
    "decoder_ffn": "decoder_ffn_dim",
    "num_bins": "num_mel_bins",
    "prenet_units": "speech_decoder_prenet_units",
    "postnet_units": "speech_decoder_postnet_units",
    "speaker_size": "speaker_embedding_dim",
    "max_text": "max_text_positions",
    "max_steps": "max_speech_positions",
    "max_distance": "encoder_max_relative_position",
}
_LAYERS = {
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "frames_per_step": "reduction_factor",
    "prenet_layers": "speech_decoder_prenet_layers",
    "postnet_layers": "speech_decoder_postnet_layers",
    "postnet_taps": "speech_decoder_postnet_kernel",
}


def _size(values: Mapping[str, Any], name: str, default: int, most: int = MAX_SIZE, *, least: int = 1) -> int:
    return read_size(f"config.json: {name}", values.get(name, default), most, least=least)


def _number(values: Mapping[str, Any], name: str, default: float, most: float) -> float:
    value = values.get(name, default)
    return read_number(f"config.json: {name}", value, lambda each: 0 <= each <= most, f"a number in [0, {most:g}]")


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
