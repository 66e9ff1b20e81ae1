"""Settings of stages as deployments and their `S1_MINI_CLUSTER_*` variables. Imports no Ray."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from s1_mini.exceptions import ConfigurationError
from s1_mini.variables import Settings

ENV_PREFIX = "S1_MINI_CLUSTER_"
INGRESS = "ingress"


@dataclass(frozen=True)
class Count:
    """How many replicas there are: from `least` to `most`, as many as the load needs."""

    least: int
    most: int

    @property
    def is_fixed(self) -> bool:
        """Whether it never changes."""
        return self.least == self.most


def _by_stage(value: Any) -> Any:
    """Read `stage=word` with commas between."""
    if not isinstance(value, str):
        return value
    words: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        stage, _, word = (each.strip() for each in part.partition("="))
        if not stage or not word or stage in words:
            raise ValueError(f"{part!r} must be stage=number, with each stage once")
        words[stage] = word
    return words


def _counts(value: Any) -> Any:
    words = _by_stage(value)
    return {stage: _count(str(word)) for stage, word in words.items()} if isinstance(words, Mapping) else words


def _count(word: str) -> Count:
    found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(f"{word!r} is neither a number of replicas from 1 nor a range such as 1-4")
    return Count(least, most)


ByStage = BeforeValidator(_by_stage)
Counts = Annotated[dict[str, Count], BeforeValidator(_counts), NoDecode]  # its errors quote the whole value
Shares = Annotated[dict[str, Annotated[float, Field(ge=0, le=64)]], ByStage, NoDecode]
Numbers = Annotated[dict[str, Annotated[int, Field(ge=1, le=100_000)]], ByStage, NoDecode]


class ClusterSettings(Settings):
    """Replicas and resources of each stage, and of the ingress, by their names."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, arbitrary_types_allowed=True)

    replicas: Counts = Field(
        {}, description="replicas of each stage, such as coarse=2,codec=1-4; a range autoscales; unset: 1 each"
    )
    gpus: Shares = Field({}, description="GPUs of each replica; unset: 1 if S1_MINI_DEVICE is cuda, else 0")
    cpus: Shares = Field({}, description="CPUs that Ray reserves for each replica; unset: 0.2 for a stage's")
    max_ongoing: Numbers = Field(
        {}, description="maximum utterances at one replica; unset: the slots of the first stage, 1,024 for others"
    )
    max_open: int = Field(256, ge=1, le=100_000, description="maximum utterances in progress at one ingress")
    grows: bool = Field(
        False,
        description="the cluster adds machines by itself, so requirements are not checked against its present size",
    )

    def check_names(self, title: str, stages: Sequence[str]) -> None:
        """Raise `ConfigurationError` for a stage that a family has not."""
        for field in ("replicas", "gpus", "cpus", "max_ongoing"):
            unknown = sorted(set(getattr(self, field)) - {*stages, INGRESS})
            if unknown:
                raise ConfigurationError(
                    f"{ENV_PREFIX}{field.upper()}: {title} has no stage {', '.join(unknown)}; available: "
                    f"{', '.join(stages)} and {INGRESS}"
                )
