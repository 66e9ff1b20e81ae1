"""Settings of the cascade alone. Imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field


class CascadeSettings(BaseModel, frozen=True):
    """What can be chosen when a cascade is opened."""

    min_eos_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="cascade: the end is chosen where it is likelier than this; 0 never; None as the checkpoint says",
    )
    fine_temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        description="cascade: temperature of the fine codes; 0 the likeliest; None as the checkpoint says",
    )
