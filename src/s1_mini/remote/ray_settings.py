"""Settings of stages as Ray deployments, and their `S1_MINI_CLUSTER_*` variables, without importing Ray."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from s1_mini.exceptions import ConfigurationError
from s1_mini.variables import Settings, entries

ENV_PREFIX = "S1_MINI_CLUSTER_"
INGRESS = "ingress"


@dataclass(frozen=True)
class Count:
    """Number of replicas: from `least` to `most`, depending on the load."""

    least: int
    most: int

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most


def _by_stage(value: Any) -> Any:
    """Parse comma-separated pairs `stage=value`."""
    if not isinstance(value, str):
        return value
    words: dict[str, str] = {}
    for part in entries(value):
        stage, _, word = (each.strip() for each in part.partition("="))
        if not stage or not word or stage in words:
            raise ValueError(f"{part!r} must be stage=number, with each stage only once")
        words[stage] = word
    return words


def _counts(value: Any) -> Any:
    words = _by_stage(value)
    return {stage: _count(str(word)) for stage, word in words.items()} if isinstance(words, Mapping) else words


def _count(word: str) -> Count:
    found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(f"{word!r} must be a number of replicas, at least 1, or a range such as 1-4")
    return Count(least, most)


ByStage = BeforeValidator(_by_stage)
Counts = Annotated[dict[str, Count], BeforeValidator(_counts), NoDecode]  # errors quote the whole value
Shares = Annotated[dict[str, Annotated[float, Field(ge=0, le=64)]], ByStage, NoDecode]
Numbers = Annotated[dict[str, Annotated[int, Field(ge=1, le=100_000)]], ByStage, NoDecode]


class ClusterSettings(Settings):
    """Replicas and resources of each stage and of the ingress."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, arbitrary_types_allowed=True)

    replicas: Counts = Field(
        {}, description="replicas per stage, such as coarse=2,codec=1-4; a range autoscales; default: 1"
    )
    gpus: Shares = Field(
        {}, description="GPUs per replica; default: 1 if S1_MINI_DEVICE is cuda, otherwise 0; for the ingress 0"
    )
    cpus: Shares = Field({}, description="CPUs that Ray reserves per replica; default: 0.2, for the ingress 0")
    max_ongoing: Numbers = Field(
        {},
        description="concurrent utterances per replica; default: S1_MINI_MAX_BATCH_SIZE for the first stage (unset: 64 "
        "on a GPU, 4 on a CPU), 1,024 for the others",
    )
    max_open: int = Field(256, ge=1, le=100_000, description="maximum number of concurrent utterances per ingress")
    grows: bool = Field(False, description="true: the cluster autoscales; its current size does not limit the replicas")

    def check_names(self, title: str, stages: Sequence[str]) -> None:
        """Raise `ConfigurationError` for a stage that the family does not have."""
        for field in ("replicas", "gpus", "cpus", "max_ongoing"):
            unknown = sorted(set(getattr(self, field)) - {*stages, INGRESS})
            if unknown:
                raise ConfigurationError(
                    f"{ENV_PREFIX}{field.upper()}: {title} has no stage {', '.join(unknown)}; available: "
                    f"{', '.join(stages)} and {INGRESS}"
                )
