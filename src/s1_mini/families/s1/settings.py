"""Settings and files of S1 alone. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

SMALL_FILES = ("config.json", "tokenizer.tiktoken", "special_tokens.json")  # of a checkpoint
STAGES = ("language_model", "codec")

RepetitionMode = Literal["upstream", "fixed"]
Heads = Literal["restricted", "full"]
Switch = Literal["off", "on"]


class S1Settings(BaseModel, frozen=True):
    """Options for opening an S1 checkpoint."""

    heads: Heads = Field("restricted", description="restricted keeps only the rows of the head that can be spoken")
    repetition_mode: RepetitionMode = Field("upstream", description="as the original counts, or as it meant to: fixed")
    batch_invariance: Switch = Field("off", description="S1: on a GPU, too, tokens do not depend on who else speaks")
