"""The architecture of a SpeechT5 checkpoint, read from `config.json` and checked before any weight is read."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s1_mini.alignment.head import AlignmentHead
from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.alignment import read_head
from s1_mini.families.base import Description
from s1_mini.families.mel.settings import FOLDERS
from s1_mini.families.mel.voice import voice_format
from s1_mini.layers.json_config import MAX_LAYERS, number, read_fields, size
from s1_mini.weights.directory import find_model, read_json

AROUND = 2  # tokens that are added to a text: a space before it, and the end token
MIN_PIECE_BYTES = 4  # a character in UTF-8 has up to four bytes


@dataclass(frozen=True)
class MelConfig:
    """Architecture of one model. Absent keys have the default values of transformers."""

    vocab_size: int = size(81, "vocab_size")
    width: int = size(768, "hidden_size")
    heads: int = size(12, "encoder_attention_heads")
    encoder_layers: int = size(12, "encoder_layers", MAX_LAYERS)
    encoder_ffn: int = size(3072, "encoder_ffn_dim")
    decoder_layers: int = size(6, "decoder_layers", MAX_LAYERS)
    decoder_ffn: int = size(3072, "decoder_ffn_dim")
    norm_eps: float = number(1e-5, "layer_norm_eps", lambda value: 0 <= value <= 1, "a number in [0, 1]")
    num_bins: int = size(80, "num_mel_bins")
    frames_per_step: int = size(2, "reduction_factor", MAX_LAYERS)
    prenet_layers: int = size(2, "speech_decoder_prenet_layers", MAX_LAYERS)
    prenet_units: int = size(256, "speech_decoder_prenet_units")
    prenet_dropout: float = number(
        0.5, "speech_decoder_prenet_dropout", lambda value: 0 <= value <= 0.95, "a number in [0, 0.95]"
    )
    postnet_layers: int = size(5, "speech_decoder_postnet_layers", MAX_LAYERS)
    postnet_units: int = size(256, "speech_decoder_postnet_units")
    postnet_taps: int = size(5, "speech_decoder_postnet_kernel", MAX_LAYERS)
    speaker_size: int = size(512, "speaker_embedding_dim")
    max_text: int = size(450, "max_text_positions")  # tokens
    max_steps: int = size(4000, "max_speech_positions")  # decoder steps
    max_distance: int = size(160, "encoder_max_relative_position")  # tokens; larger distances are clamped
    eos: int = size(2, "eos_token_id", least=0)
    alignment: AlignmentHead | None = None  # the head of the decoder's attention to the text that gives word times

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MelConfig:
        """Read `config.json`. Raises `CheckpointMismatchError` for an invalid value."""
        config = cls(**read_fields(cls, values))
        config = replace(config, alignment=read_head(values, config.decoder_layers, config.heads))
        if config.eos >= config.vocab_size:
            raise CheckpointMismatchError(
                f"config.json: eos_token_id={config.eos} must be below vocab_size={config.vocab_size}"
            )
        decoder_heads = values.get("decoder_attention_heads", config.heads)
        if decoder_heads != config.heads or config.width % config.heads or config.width % 2:
            raise CheckpointMismatchError(
                f"config.json: hidden_size={config.width} must be even and a multiple of encoder_attention_heads="
                f"{config.heads}; decoder_attention_heads={reprlib.repr(decoder_heads)} must be equal to that"
            )
        if values.get("hidden_act", "gelu") != "gelu":
            raise CheckpointMismatchError(
                f"config.json: hidden_act={reprlib.repr(values['hidden_act'])} is not supported; it must be gelu"
            )
        if config.postnet_taps % 2 == 0 or config.postnet_layers < 2:
            raise CheckpointMismatchError(
                "config.json: speech_decoder_postnet_kernel must be odd, and speech_decoder_postnet_layers at least 2"
            )
        return config


KEY = "vocoder"  # key in config.json of the vocoder's config, if the model's files contain the vocoder


@dataclass(frozen=True)
class VocoderFiles:
    """A vocoder's config, the folder with its tensors, and the prefix of their names."""

    config: HifiGanConfig
    folder: Path
    prefix: str = ""

    @property
    def weights(self) -> Path:
        """The file with the vocoder's tensors. Raises `CheckpointFileError` if there is none."""
        return find_model(self.folder)


def find_vocoder(directory: Path) -> VocoderFiles:
    """Find the vocoder of a checkpoint, in a folder of its own or in the model's files. Raises `CheckpointError`."""
    for name in FOLDERS:
        folder = directory / name
        if folder.is_dir():
            return VocoderFiles(HifiGanConfig.from_json(read_json(folder / "config.json")), folder)
    inner = read_json(directory / "config.json").get(KEY)
    if not isinstance(inner, dict):
        raise CheckpointFileError(
            f"{directory} has no vocoder: it needs a folder {' or '.join(f'{name}/' for name in FOLDERS)} with "
            f"config.json and weights, or {KEY!r} in its own config.json"
        )
    return VocoderFiles(HifiGanConfig.from_json(inner), directory, f"{KEY}.")


def read_configs(directory: Path) -> tuple[MelConfig, VocoderFiles]:
    """Read the configs of the model and of the vocoder, but no weights. Raises `CheckpointError`."""
    config, vocoder = MelConfig.from_json(read_json(directory / "config.json")), find_vocoder(directory)
    if config.num_bins != vocoder.config.num_bins:
        raise CheckpointMismatchError(
            f"the vocoder expects {vocoder.config.num_bins} mel bins, but config.json has "
            f"num_mel_bins={config.num_bins}"
        )
    return config, vocoder


def describe(directory: Path) -> Description:
    config, vocoder = read_configs(directory)
    rate = vocoder.config.sample_rate
    longest = max(MIN_PIECE_BYTES, config.max_text - AROUND)
    voice, has_head = voice_format(config.speaker_size, rate), config.alignment is not None
    return Description(rate, voice, sampling=(), max_piece_bytes=longest, word_times=has_head)
