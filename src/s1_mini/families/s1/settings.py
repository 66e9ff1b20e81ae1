"""Settings of S1 alone. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

RepetitionMode = Literal["upstream", "fixed"]
Heads = Literal["restricted", "full"]


class S1Settings(BaseModel, frozen=True):
    """What can be chosen when an S1 checkpoint is opened."""

    heads: Heads = Field("restricted", description="restricted keeps only the rows of the head that can be spoken")
    repetition_mode: RepetitionMode = Field("upstream", description="as the original counts, or as it meant to: fixed")
