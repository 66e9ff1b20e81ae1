"""Settings of the container and their `S1_MINI_SERVER_SAGEMAKER_*` variables."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from s1_mini.variables import Settings


class ContainerSettings(Settings):
    """Settings of the container's contract."""

    model_config = SettingsConfigDict(env_prefix="S1_MINI_SERVER_SAGEMAKER_")

    # Sticky sessions.
    max_sessions: int = Field(256, ge=1, description="maximum number of open sessions")
    max_session_mb: float = Field(256.0, gt=0, description="maximum total size of the sessions' recordings, MB")
    session_s: float = Field(1200.0, gt=0, le=86_400.0, description="lifetime of a session, seconds")

    # The multi-model container's models, in addition to the engine that is always loaded.
    models_root: Path = Field(Path("/opt/ml/models"), description="directory from which models may be loaded")
    models_memory_mb: float = Field(
        8192.0, gt=0, description="memory budget of all loaded models, MB; estimated from file sizes and caches"
    )
    models_kv_mb: float = Field(
        512.0, gt=0, description="key-value cache of each model, MB; replaces S1_MINI_KV_CACHE_GB"
    )

    # The local endpoint's asynchronous invocations.
    max_async: int = Field(64, ge=1, description="maximum number of pending asynchronous invocations")
    max_async_bytes: int = Field(64 * 2**20, ge=1024, description="maximum size of one asynchronous input, bytes")
