"""Settings that only S1 has, and its small files, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

SMALL_FILES = ("config.json", "tokenizer.tiktoken", "special_tokens.json")  # required in addition to the weights
AUDIO8_FILES = ("config.json", "tokenizer.json")  # the same of Audio8
AUDIO8_OPTIONAL = "generation_config.json"
STAGES = ("language_model", "codec")

RepetitionMode = Literal["upstream", "fixed"]
Heads = Literal["restricted", "full"]
Switch = Literal["off", "on"]


class S1Settings(BaseModel, frozen=True):
    """Options for opening an S1 checkpoint."""

    heads: Heads = Field(
        "restricted", description="S1: output head with the rows for speech only (restricted) or all rows (full)"
    )
    repetition_mode: RepetitionMode = Field(
        "upstream",
        description="S1: repetition penalty as in the original implementation (upstream), or without its three bugs "
        "(fixed)",
    )
    batch_invariance: Switch = Field(
        "off", description="S1: generate tokens that do not depend on concurrent requests, also on a GPU"
    )
