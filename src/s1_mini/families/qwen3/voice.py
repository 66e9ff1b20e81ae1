"""The properties of a Qwen3-TTS checkpoint and its voices: presets by id, or a speaker vector with a reference's codes.

Importing this module does not import torch.
A cloned voice with a transcript is continued (in-context cloning); without a transcript, only its vector is used.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from s1_mini.codecs.qwen12.config import read_qwen12_config
from s1_mini.families.base import Description
from s1_mini.families.qwen3.config import AUTO, Defaults, Qwen3Config, read_config
from s1_mini.families.qwen3.settings import CODEC_FOLDER
from s1_mini.types import SamplingParams
from s1_mini.voices.format import TensorFormat, Tensors, VoiceBeside, VoiceFormat, fingerprint
from s1_mini.weights.directory import find_model

PRESET, VECTOR, CODES = "preset", "vector", "codes"


TAGS = {
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german": "de",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}


def describe(directory: Path) -> Description:
    config, codec, defaults = (
        read_config(directory),
        read_qwen12_config(directory / CODEC_FOLDER),
        Defaults.read(directory),
    )
    frame_rate = codec.sample_rate / codec.samples_per_frame
    return Description(
        codec.sample_rate,
        voice_format(directory, config, codec.sample_rate, frame_rate),
        sampling=("temperature", "top_k", "top_p", "repetition_penalty"),
        defaults=SamplingParams(
            temperature=defaults.temperature,
            top_k=defaults.top_k,
            top_p=defaults.top_p,
            repetition_penalty=defaults.repetition_penalty,
            max_new_tokens=defaults.max_new_tokens,
        ),
        word_times=config.alignment is not None,
        languages={AUTO: "", **{name: TAGS.get(name, "") for name in config.languages}},
        instructions=config.takes_instructions,
        needs_voice=config.kind == "base",
        text_streams=True,
        splits=config.has_voices,
    )


def voice_format(directory: Path, config: Qwen3Config, sample_rate: int, frame_rate: float) -> VoiceFormat:
    """Return the format of a checkpoint's voices; `frame_rate` is in frames per second."""
    if config.kind == "base":
        return VoiceFormat(
            tensors={
                VECTOR: TensorFormat((config.backbone.dim,), is_integer=False),
                CODES: TensorFormat((config.num_codebooks, None), is_integer=True),
            },
            encoder=fingerprint([find_model(directory), find_model(directory / CODEC_FOLDER)]),
            sample_rate=sample_rate,
            seconds=lambda shapes: shapes[CODES][1] / frame_rate,
            fault=partial(_fault, config),
        )
    return VoiceFormat(
        tensors={PRESET: TensorFormat((1,), is_integer=True)},
        encoder=f"{len(config.speakers)} presets",
        sample_rate=sample_rate,
        seconds=lambda _: 0.0,
        fault=partial(_unknown_preset, config),
        clones=False,
        beside=lambda _: {name: _preset(config, name) for name in config.speakers},
    )


def _preset(config: Qwen3Config, name: str) -> VoiceBeside:
    """Return a preset; the first one of the config is the default."""

    def read() -> Tensors:
        import torch

        return {PRESET: torch.tensor([config.speakers[name]])}

    return VoiceBeside(lambda: {PRESET: (1,)}, read, is_default=name == next(iter(config.speakers)))


def _unknown_preset(config: Qwen3Config, tensors: Tensors) -> str:
    return "" if int(tensors[PRESET][0]) in config.speakers.values() else "names a speaker that this checkpoint lacks"


def _fault(config: Qwen3Config, tensors: Tensors) -> str:
    if not bool(tensors[VECTOR].isfinite().all()):
        return "contains NaN or infinity"
    codes = tensors[CODES]
    if int(codes.min()) < 0 or int(codes.max()) >= config.code_size:
        return "has codes outside this codec's codebooks; it was encoded by a different codec"
    return ""
