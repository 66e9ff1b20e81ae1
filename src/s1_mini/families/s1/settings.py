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

    heads: Heads = Field("restricted", description="S1: restricted: keep only the head's rows of tokens that can occur")
    repetition_mode: RepetitionMode = Field(
        "upstream", description="S1: upstream: count repetitions as the original code does; fixed: as it intended"
    )
    batch_invariance: Switch = Field(
        "off", description="S1: a request's tokens do not depend on others in its batch, also on a GPU"
    )
