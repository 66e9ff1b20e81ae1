"""Settings that only Qwen3-TTS has, and its files, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

STAGES = ("language_model", "codec")
CODEC_FOLDER = "speech_tokenizer"
SMALL_FILES = ("config.json", "vocab.json", f"{CODEC_FOLDER}/config.json")  # required besides weights
OPTIONAL_FILES = ("generation_config.json",)

TextLayout = Literal["auto", "whole", "step"]


class Qwen3Settings(BaseModel, frozen=True):
    """Options for opening a Qwen3-TTS checkpoint."""

    text_layout: TextLayout = Field(
        "auto",
        description="Qwen3-TTS: whole: read the whole text before the first frame; step: read one token per frame; "
        "auto: step for cloned voices and whole for others, like the original implementation",
    )
    predictor_temperature: float | None = Field(
        None, ge=0, le=2, description="Qwen3-TTS: temperature of codes 2 to 16; 0: greedy; unset: the checkpoint's"
    )
    predictor_top_k: int | None = Field(
        None, ge=0, le=2**17, description="Qwen3-TTS: top-k of codes 2 to 16; 0: all; unset: the checkpoint's"
    )
    predictor_top_p: float | None = Field(
        None, gt=0, le=1, description="Qwen3-TTS: top-p of codes 2 to 16; unset: the checkpoint's"
    )
