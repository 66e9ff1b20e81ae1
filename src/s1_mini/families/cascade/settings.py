"""Settings that only the cascade has, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

from s1_mini.variables import entries

STAGES = ("semantic", "coarse", "fine", "codec")
VLLM_STAGES = STAGES[:2]  # the autoregressive stages, which are those that vLLM can run


def _stages(value: Any) -> tuple[str, ...]:
    names = entries(value) if isinstance(value, str) else list(value)
    unknown = [name for name in names if name and name not in VLLM_STAGES]
    if unknown:
        raise ValueError(
            f"vLLM cannot run {', '.join(map(str, unknown))}; use one of {', '.join(VLLM_STAGES)}, or both"
        )
    return tuple(name for name in VLLM_STAGES if name in names)


class CascadeSettings(BaseModel, frozen=True):
    """Options for opening a cascade."""

    min_eos_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="cascade: end-of-speech probability that ends generation; 0: never; unset: the checkpoint's",
    )
    fine_temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        description="cascade: temperature of the fine codes; 0: greedy; unset: the checkpoint's",
    )
    vllm_stages: Annotated[tuple[str, ...], BeforeValidator(_stages), NoDecode] = Field(
        (), description="cascade: stages to run on vLLM: semantic, coarse or semantic,coarse"
    )
    vllm_python: Path | None = Field(
        None, description="cascade: Python of the environment with vLLM; unset: the engine's own"
    )
