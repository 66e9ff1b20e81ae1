"""Settings of the server and their `S1_MINI_SERVER_*` variables.

Those of the engine are in `s1_mini.config`, per-request options in `schemas`.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from s1_mini.server.logs import LogFormat
from s1_mini.variables import SERVER, Settings, unknown_variables


class ServerSettings(Settings):
    """Settings of one server process."""

    model_config = SettingsConfigDict(env_prefix=SERVER)

    host: str = Field("127.0.0.1", description="address to listen at; the container says 0.0.0.0, which is all")
    port: int = Field(8080, ge=0, le=65_535, description="0 picks a free one")
    replicas: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="engine processes behind the port; auto: one for each GPU, as the container has it"
    )
    api_key: SecretStr | None = Field(None, description="bearer key of all paths but pages and probes; none: open")
    api_keys: SecretStr | None = Field(None, description="more keys, comma-separated; each is a client of its own")
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field((), description="pages that may call, comma-separated")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="names of this server, comma-separated; with none, and no key, on loopback: localhost",
    )

    # How much a client may send, and how slowly.
    max_body_bytes: int = Field(16 * 2**20, ge=1024, description="of a request, declared or not")
    max_bodies_bytes: int = Field(
        256 * 2**20, ge=1024, description="of bodies and recordings, all clients together; more get 503"
    )
    max_audio_bytes: int = Field(
        2**30, ge=1024, description="of generated audio that is not sent yet, all clients together; more get 503"
    )
    head_timeout_s: float = Field(10.0, gt=0, description="from a connection, or a head's first bytes, to its last")
    body_timeout_s: float = Field(20.0, gt=0, description="from the first to the last byte of a body")
    send_timeout_s: float = Field(20.0, gt=0, description="without a byte taken of an answer that waits; then it ends")
    max_batch_items: int = Field(32, ge=1, le=1024, description="texts of one batch")
    max_websocket_s: float = Field(1800.0, gt=0, description="30 min is the platform's limit for one connection")
    websocket_idle_s: float = Field(60.0, gt=0, description="without a message, while nothing is spoken")

    # How long an answer may take.
    request_timeout_s: float = Field(
        300.0,
        gt=0,
        description="to the whole answer, or to a stream's first audio; 55 in the container; "
        "S1_MINI_REQUEST_TIMEOUT_S of the engine counts to the last audio of either",
    )
    stream_timeout_s: float = Field(300.0, gt=0, description="to a stream's end, and for a whole answer to be taken")
    drain_timeout_s: float = Field(25.0, gt=0, description="from SIGTERM to the exit; the platform kills after 30 s")

    log_format: LogFormat = Field("auto", description="of log lines; auto: text on a terminal, else json")
    cloudwatch_namespace: str = Field(
        "", max_length=255, pattern=r"^[A-Za-z0-9._/#:-]*$", description="of metrics in log lines; none without it"
    )

    # How many at once.
    max_connections: int = Field(4096, ge=1, description="less where the system lets the process open fewer files")
    max_websockets: int = Field(512, ge=1, description="WebSocket sessions; a new one replaces the longest idle one")
    max_requests: int = Field(512, ge=1, description="texts being spoken; more get 503; see also the engine's queue")
    max_requests_per_client: int = Field(
        0, ge=0, description="texts of one client being spoken; more get 429; 0: three quarters of what others leave"
    )
    fairness: Literal["client", "request"] = Field(
        "client",
        description="client: one API key, else one address, cannot use up a limit; request: where all requests come "
        "from one address, as behind SageMaker, one request cannot",
    )
    threads: int = Field(32, ge=1, le=512, description="for what would block the event loop: encoding, decoding, files")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        for warning in unknown_variables(os.environ, SERVER):
            warnings.warn(warning, stacklevel=2)

    @property
    def keys(self) -> list[str]:
        """All API keys; empty if the server is open."""
        single = [] if self.api_key is None else [self.api_key.get_secret_value()]
        several = "" if self.api_keys is None else self.api_keys.get_secret_value()
        return single + [key.strip() for key in several.split(",") if key.strip()]

    @field_validator("replicas", mode="before")
    @classmethod
    def _count(cls, value: Any) -> Any:
        if value != "auto" and not re.fullmatch(r"[1-9]|[1-5]\d|6[0-4]", str(value)):
            raise ValueError("is neither auto nor a whole number from 1 to 64")
        return value if value == "auto" else int(value)

    @field_validator("cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
