"""The properties of a Qwen3-TTS checkpoint, read from its small files. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from s1_mini.codecs.qwen12.config import read_qwen12_config
from s1_mini.families.base import Description
from s1_mini.families.qwen3.config import AUTO, Defaults, read_config
from s1_mini.families.qwen3.settings import CODEC_FOLDER
from s1_mini.families.qwen3.voice import voice_format
from s1_mini.types import SamplingParams

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
