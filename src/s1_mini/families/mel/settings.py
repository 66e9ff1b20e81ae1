"""Settings that only the mel family has, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

STAGES = ("decoder", "vocoder")
FOLDERS = ("vocoder", "hifigan")  # possible names of the vocoder's folder

Dropout = Literal["on", "off"]


class MelSettings(BaseModel, frozen=True):
    """Options for opening a SpeechT5 checkpoint."""

    prenet_dropout: Dropout = Field("on", description="SpeechT5: prenet dropout; on, as in training, or off")
    stop_threshold: float = Field(
        0.5,
        gt=0,
        le=10,
        description="SpeechT5: sum of a step's stop probabilities that ends generation; above 2: never",
    )
    min_length_ratio: float = Field(0.0, ge=0, le=100, description="SpeechT5: minimum mel frames per character")
    max_length_ratio: float = Field(20.0, gt=0, le=100, description="SpeechT5: maximum mel frames per character")
