"""Settings of the server and their `S1_MINI_SERVER_*` variables.

The engine's settings are in `s1_mini.config`, per-request options in `schemas`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from s1_mini.server.logs import LogFormat
from s1_mini.variables import SERVER, Settings, check_variables, entries

if TYPE_CHECKING:
    from s1_mini.server.signing import Signer

_KEY_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


def _keys(single: SecretStr | None, several: SecretStr | None) -> list[str]:
    keys = [] if single is None else [single.get_secret_value()]
    return keys + ([] if several is None else entries(several.get_secret_value()))


class ServerSettings(Settings):
    """Settings of one server process."""

    model_config = SettingsConfigDict(env_prefix=SERVER)

    host: str = Field("127.0.0.1", description="address to listen on; the container uses 0.0.0.0 (all addresses)")
    port: int = Field(8080, ge=0, le=65_535, description="port to listen on; 0 picks a free one")
    wyoming_port: int | None = Field(
        None, ge=0, le=65_535, description="port for the Wyoming protocol of Home Assistant; unset: none"
    )
    wyoming_host: str = Field("127.0.0.1", description="address for the Wyoming protocol, which has no authentication")
    replicas: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="engines behind the port; auto, the container's default: one for each GPU"
    )
    engine_process: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether the engine runs in a process of its own; auto: on an NVIDIA GPU",
    )
    api_key: SecretStr | None = Field(
        None, description="bearer key, required except on public paths (serving.md); unset: no authentication"
    )
    api_keys: SecretStr | None = Field(None, description="more keys, comma-separated; each is a separate client")
    api_key_names: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        max_length=100,
        description="names of all keys, comma-separated: first that of API_KEY, then those of API_KEYS; 1 to 64 "
        "letters, digits and . _ - each; use is reported under these names, also at /metrics, which is public",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="web origins that may call the API, comma-separated"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="accepted Host names, comma-separated; unset: any; if the server has no key and listens on "
        "localhost, 127.0.0.1 or ::1: only these three names",
    )

    voice_names: Annotated[dict[str, str], NoDecode] = Field(
        {},
        description="voices for the names of other services' voices, such as alloy=clara,nova=anna; overrides the "
        "built-in choice",
    )

    lexicons_path: Path | None = Field(
        None, description="folder for the lexicons that Polly's clients upload; unset: in memory until the server ends"
    )

    c2pa_certificate_path: Path | None = Field(
        None,
        description="PEM file with the certificate chain that signs complete WAV, MP3 and FLAC responses "
        "(synthetic_audio.md); unset: they are not signed",
    )
    c2pa_key_path: Path | None = Field(None, description="PEM file with the certificate's private key, unencrypted")

    unload_after_s: float = Field(
        0.0,
        ge=0,
        description="seconds without requests after which the engine is unloaded until the next request; 0: never; "
        "without S1_MINI_VOICES_PATH, an engine with added voices stays loaded",
    )

    # Limits on the size and duration of client input.
    max_body_bytes: int = Field(16 * 2**20, ge=1024, description="maximum size of a request body")
    max_bodies_bytes: int = Field(
        256 * 2**20,
        ge=1024,
        description="maximum size of the bodies and recordings of all clients together; beyond this, requests get 503",
    )
    max_audio_bytes: int = Field(
        2**30, ge=1024, description="maximum unsent audio of all clients together; beyond this, requests get 503"
    )
    head_timeout_s: float = Field(10.0, gt=0, description="maximum time to receive a complete request head")
    body_timeout_s: float = Field(
        20.0, gt=0, description="maximum time to receive a body, from the end of the request head"
    )
    send_timeout_s: float = Field(20.0, gt=0, description="close a connection whose client reads nothing for this long")
    max_batch_items: int = Field(32, ge=1, le=1024, description="maximum texts of one batch")
    max_websocket_s: float = Field(
        1800.0, gt=0, description="maximum duration of a session; SageMaker's limit is 30 minutes"
    )
    websocket_idle_s: float = Field(
        60.0, gt=0, description="maximum time without a message while no audio is being generated"
    )

    # When the audio of text that is still arriving starts (WebSocket sessions, Wyoming).
    start_at: Literal["sentence", "clause", "word"] = Field(
        "sentence",
        description="when the audio of arriving text starts: after a sentence, after a clause, or (only Qwen3-TTS) "
        "after the first words, with the rest of the text in the same utterance",
    )
    start_words: int = Field(
        0, ge=0, le=100, description="audio of arriving text starts once at least this many words have arrived; 0: off"
    )
    start_pause_s: float = Field(
        0.0, ge=0, le=60, description="audio of arriving text starts when no text arrives for this long; 0: off"
    )

    # Limits on the duration of a response.
    request_timeout_s: float = Field(
        300.0,
        gt=0,
        description="maximum time until a complete response or a stream's first audio; 55 in the container; "
        "S1_MINI_REQUEST_TIMEOUT_S limits the time to the last audio, for streams and complete responses alike",
    )
    stream_timeout_s: float = Field(
        300.0,
        gt=0,
        description="maximum duration of a stream, and maximum time for a client to read a complete response",
    )
    drain_timeout_s: float = Field(
        25.0, gt=0, description="maximum time from SIGTERM to the exit; SageMaker kills the container after 30 s"
    )

    log_format: LogFormat = Field("auto", description="format of log lines; auto: text on a terminal, otherwise json")
    cloudwatch_namespace: str = Field(
        "",
        max_length=255,
        pattern=r"^[A-Za-z0-9._/#:-]*$",
        description="CloudWatch namespace of metrics in log lines; unset: no such metrics",
    )

    # Limits on concurrency.
    max_connections: int = Field(4096, ge=1, description="maximum connections; fewer if the system limits open files")
    max_websockets: int = Field(
        512, ge=1, description="maximum WebSocket sessions; a new one replaces the longest idle one"
    )
    max_requests: int = Field(
        2048,
        ge=1,
        description="maximum texts in progress; beyond this, requests get 503; the engine's queue has its own limit",
    )
    max_requests_per_client: int = Field(
        0,
        ge=0,
        description="maximum texts in progress for one client; beyond this, 429; 0: three quarters of "
        "the capacity that other clients leave unused",
    )
    fairness: Literal["client", "request"] = Field(
        "client",
        description="client: no single client (API key or address) can use up a limit; request, in a container "
        "without keys: no single request can, because SageMaker sends all requests from one address",
    )
    threads: int = Field(
        32, ge=1, le=512, description="threads for work that would block the event loop: encoding, decoding, files"
    )

    _signer: Any = PrivateAttr(None)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        check_variables(SERVER)

    def signer(self) -> Signer | None:
        """Return what signs complete files, if a certificate is set. Raises `ConfigurationError`."""
        if self._signer is None and (self.c2pa_certificate_path or self.c2pa_key_path):
            from s1_mini.server.signing import Signer

            self._signer = Signer(self.c2pa_certificate_path, self.c2pa_key_path)
        return self._signer

    @property
    def keys(self) -> list[str]:
        """All API keys; empty if the server is open."""
        return _keys(self.api_key, self.api_keys)

    @field_validator("replicas", mode="before")
    @classmethod
    def _count(cls, value: Any) -> Any:
        if value != "auto" and not re.fullmatch(r"[1-9]|[1-5]\d|6[0-4]", str(value)):
            raise ValueError("is neither auto nor a whole number from 1 to 64")
        return value if value == "auto" else int(value)

    @field_validator("voice_names", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in entries(value)]
        if not all(name.strip() and voice.strip() for name, _, voice in pairs):
            raise ValueError("is not a list such as alloy=clara,nova=anna")
        return {name.strip(): voice.strip() for name, _, voice in pairs}

    def key_name(self, index: int) -> str:
        """Return the name of a key of `keys`; empty without names."""
        return self.api_key_names[index] if self.api_key_names else ""

    @field_validator("api_key_names")
    @classmethod
    def _is_named(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        keys = _keys(info.data.get("api_key"), info.data.get("api_keys"))
        if value and len(value) != len(keys):
            raise ValueError(f"must name each key: the number of names is {len(value)}, that of keys {len(keys)}")
        if value and len({*keys}) < len(keys):
            raise ValueError("has two names for the same key; remove a key from API_KEY or API_KEYS")
        for index, name in enumerate(value):  # the message has no name, which may be a misplaced key
            if name in value[:index] or not _KEY_NAME.fullmatch(name):
                raise ValueError(f"name {index + 1} is a repeated one, or not 1 to 64 letters, digits and . _ -")
        return value

    @field_validator("cors_origins", "allowed_hosts", "api_key_names", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(entries(value)) if isinstance(value, str) else value

    @field_validator("api_key", "api_keys")
    @classmethod
    def _has_key(cls, value: SecretStr | None) -> SecretStr | None:
        """Refuse a value without a key, which would leave the server open or closed to everyone."""
        if value is not None:
            entries(value.get_secret_value())
        return value
