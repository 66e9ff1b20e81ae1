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
    max_sessions: int = Field(256, ge=1, description="that are open at once")
    max_session_mb: float = Field(256.0, gt=0, description="recordings of all sessions together")
    session_s: float = Field(1200.0, gt=0, le=86_400.0, description="from its beginning to its end")

    # The multi-model container's models, next to the engine that is always loaded.
    models_root: Path = Field(Path("/opt/ml/models"), description="models lie in it, and nowhere else")
    models_memory_mb: float = Field(8192.0, gt=0, description="of all of them; see models.py for what one counts")
    models_kv_mb: float = Field(512.0, gt=0, description="keys and values of each; instead of S1_MINI_KV_CACHE_GB")

    # The local endpoint's asynchronous invocations.
    max_async: int = Field(64, ge=1, description="accepted and not yet answered")
    max_async_bytes: int = Field(64 * 2**20, ge=1024, description="of one input")
