"""Settings of one engine process: fields, their `S1_MINI_*` variables and their checks, without torch.

A keyword takes precedence over a variable, and a variable over the default. Options of a request are in `types.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from s1_mini.exceptions import ConfigurationError
from s1_mini.families.registry import family_settings
from s1_mini.variables import ENGINE as PREFIX
from s1_mini.variables import check_variables, entries, variables_of

Precision = Literal["auto", "float32", "float16", "bfloat16"]
CompileSwitch = Literal["auto", "true", "false"]
CompileBackend = Literal["auto", "inductor", "eager", "off"]
WeightFormat = Literal["full", "int8", "fp8"]
KVFormat = Literal["full", "fp8"]

_PRECISION_SPELLINGS = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
_FORMAT_SPELLINGS = {"half": "full", "none": "full", "float8": "fp8", "float8_e4m3fn": "fp8"}
_SWITCH_SPELLINGS = {"1": "true", "on": "true", "yes": "true", "0": "false", "off": "false", "no": "false"}


def _variables(*names: str) -> AliasChoices:
    return AliasChoices(*(PREFIX + name for name in names))


def _path(value: Any) -> Any:
    if value == "":
        raise ValueError("is empty; specify a directory, or leave it out")
    return value


def _placement(value: Any) -> Any:
    """Parse `stage=device` pairs, separated by commas."""
    if not isinstance(value, str):
        return value
    devices: dict[str, str] = {}
    for part in entries(value):
        stage, _, device = (word.strip() for word in part.partition("="))
        if not stage or stage in devices:
            raise ValueError(f"{part!r} is not stage=device, or names a stage twice")
        devices[stage] = device
    return devices


def _list(value: str) -> str:
    if value:
        entries(value)
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise ValueError("is not a device; use auto, cpu, mps, cuda or cuda:N")
    return value


Device = Annotated[str, AfterValidator(_device)]
Placement = Annotated[dict[str, Device], BeforeValidator(_placement), NoDecode]
NameList = Annotated[str, AfterValidator(_list)]
Folder = Annotated[Path | None, BeforeValidator(_path)]


class LoadSettings(BaseSettings):
    """Which checkpoint to load, where, and in which number formats."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, env_prefix=PREFIX, env_ignore_empty=True
    )

    checkpoint_path: Folder = Field(
        None,
        description="checkpoint: a directory, or a name on the Hugging Face hub; unset: the built-in voice",
    )
    device: Device = Field("auto", description="auto, cpu, mps, cuda or cuda:N")
    placement: Placement = Field(
        {},
        description="devices of individual stages, such as codec=cuda:1; an unknown stage is an error that "
        "lists the valid names",
    )
    precision: Precision = Field(
        "auto", description="number format of the model; auto: bfloat16 on a GPU that supports it"
    )
    codec_dtype: Precision = Field("auto", description="number format of the codec's decoder; auto: float16 on a GPU")
    weights_dtype: WeightFormat = Field(
        "full", description="number format of the weights in large matrix products; full: `S1_MINI_PRECISION`"
    )
    kv_dtype: KVFormat = Field("full", description="number format of the KV cache; full: `S1_MINI_PRECISION`")

    @field_validator("precision", "codec_dtype", mode="before")
    @classmethod
    def _read_precision(cls, value: Any) -> Any:
        return _PRECISION_SPELLINGS.get(str(value).lower(), str(value).lower())

    @field_validator("weights_dtype", "kv_dtype", mode="before")
    @classmethod
    def _read_format(cls, value: Any) -> Any:
        return _FORMAT_SPELLINGS.get(str(value).lower(), str(value).lower())


class EngineConfig(*family_settings(), LoadSettings):  # type: ignore[misc] # each family adds its settings
    """Settings of `ProductionTTSEngine`, by keyword or by `S1_MINI_*` variable, including those of all families.

    Raises `ConfigurationError` for an unknown keyword or a value out of range, naming the keyword or the variable that
    was set. Warns of unknown `S1_MINI_*` variables.
    """

    # Compilation: inductor on a GPU (runtime/loader.py), numba on a CPU (runtime/ahead.py), eager elsewhere.
    compile: CompileSwitch = Field(
        "auto",
        description="auto: torch.compile on Linux with a GPU; numba in the background on a CPU, except for models"
        " under 2 MB, or over 400 MB on more than four cores; true: compile before the engine starts",
    )
    compile_backend: CompileBackend = Field("auto", description="eager (alias off): no compilation")
    compile_cache_path: Folder = Field(
        None,
        description="folder that keeps compiled kernels for the next start; all engines of a process use the folder of "
        "the first one",
    )

    # Batching: requests join and leave at every frame (core/scheduler.py).
    enable_batching: bool = Field(True, description="false: one sentence piece at a time")
    max_batch_size: int | None = Field(
        None,
        ge=1,
        le=4096,
        validation_alias=_variables("MAX_BATCH_SIZE", "BATCH_SIZE"),
        description="number of slots; unset: 4 on a CPU, as many as fit in memory on a GPU, up to 256",
    )
    batch_timeout_ms: float = Field(
        0.0,
        ge=0,
        le=60_000,
        validation_alias=_variables("BATCH_TIMEOUT_MS", "BATCH_TIMEOUT"),
        description="how long a sentence piece waits for other pieces to form a batch",
    )
    batch_grouping: bool = Field(True, description="start pieces with the same voice together")
    max_queue_size: int = Field(1024, ge=1, description="maximum number of requests in the queue")

    # Memory.
    kv_cache_gb: float | None = Field(
        None,
        gt=0,
        description="size of the KV cache; unset: the GPU's free memory minus all other needs (`s1-mini "
        "plan`), 1 GB on a CPU",
    )
    max_columns: int | None = Field(
        None, ge=64, description="maximum positions of a slot: text, reference and frames of one piece"
    )
    prefix_cache_mb: float | None = Field(
        None,
        ge=0,
        description="size of the prefix cache: keys and values of recently used voices; unset: 256 MB; on a GPU "
        "without S1_MINI_KV_CACHE_GB, half of the memory that the slots leave free is added",
    )
    kv_cache_size: int = Field(
        100, ge=0, description="maximum number of voices in the prefix cache (a count, not a size); 0: none"
    )
    reference_cache_size: int = Field(
        1000, ge=0, description="maximum number of recordings whose encodings are kept in memory"
    )
    reference_cache_path: Folder = Field(
        None, description="folder of encoded recordings, kept for the next start and shared by processes"
    )
    reference_cache_disk_mb: float = Field(
        1000.0,
        gt=0,
        description="maximum size of the folder of encoded recordings; the least recently used ones are deleted first",
    )

    # Named voices in addition to the checkpoint's own (voices/registry.py).
    voices_path: Folder = Field(
        None, description="folder that keeps added voices; unset: they are kept in memory until the engine stops"
    )

    # How text is read (text/form.py).
    normalize: Literal["auto", "off"] = Field(
        "auto",
        description="auto: read numbers and symbols as words if the checkpoint declares a language or a choice of"
        " languages; off: only tidy Unicode and white space",
    )
    on_unsupported: Literal["error", "skip"] = Field(
        "error",
        validation_alias=_variables("ON_UNSUPPORTED", "UNSPEAKABLE"),
        description="characters that a voice cannot pronounce: reject the text, or skip them with a warning; "
        "OpenAI's and ElevenLabs' routes and WebSocket sessions skip unless the request says otherwise; Polly's route "
        "and Wyoming always skip",
    )

    lexicon_path: Folder = Field(
        None, description="pronunciation lexicon for all requests: a W3C PLS file, or lines `word = respelling`"
    )
    accept_ssml: bool = Field(
        False,
        description="true: a text that begins with `<speak>` and ends with `</speak>` is treated as SSML even if "
        "`text_type` is not set",
    )

    # What files and answers state about their audio (audio/container.py).
    label_audio: bool = Field(
        True, description="state in files, responses and corpora that the audio is synthetic (synthetic_audio.md)"
    )

    # Limits for client input.
    max_text_length: int = Field(20_000, ge=1, description="maximum characters of one request")
    chunk_length: int | None = Field(
        None,
        ge=50,
        le=1000,
        description="maximum UTF-8 bytes of one sentence piece; unset: what the checkpoint declares, otherwise 200",
    )
    max_reference_s: float = Field(60.0, gt=0, le=190.0, description="maximum length of a recording")
    max_reference_bytes: int = Field(64 * 2**20, ge=1024, description="maximum size of a recording's file")
    max_waiting_references: int = Field(
        32,
        ge=1,
        description="maximum recordings waiting to be encoded, and as many for a decoder process; more are refused",
    )
    request_timeout_s: float = Field(
        300.0, gt=0, description="maximum time from a request to its last audio, including time in the queue"
    )

    # Upkeep.
    stuck_after_s: float = Field(
        120.0, gt=0, description="how long one operation, such as a frame, may take before the engine counts as hung"
    )
    vram_clear_on_oom: bool = Field(True, description="release unused memory if the GPU runs out of memory")
    metrics_enabled: bool = Field(True, description="publish the engine's metrics")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(_sentence(error, values)) from None
        check_variables()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """Return a copy with `update`, validated like keywords; variables are not read again.

        Raises `ConfigurationError`.
        """
        copy = self.__new__(type(self))
        try:
            BaseModel.__init__(copy, **{**dict(self), **(update or {})})
        except ValidationError as error:
            raise ConfigurationError(_sentence(error, type(self).model_fields)) from None
        return copy

    @field_validator("compile", mode="before")
    @classmethod
    def _read_switch(cls, value: Any) -> Any:
        return _SWITCH_SPELLINGS.get(str(value).lower(), str(value).lower())


def set_variable(name: str) -> str | None:
    """Return the name of the environment variable that is set for a field, or None."""
    given = {variable.upper() for variable, value in os.environ.items() if value}
    return next((variable for variable in variables_of(EngineConfig, name) if variable in given), None)


def _as_given(name: str, keywords: Container[str]) -> str:
    """Return the keyword or the variable that was set, given the field or variable that pydantic names."""
    fields = EngineConfig.model_fields
    field = next((field for field in fields if name in (field, *variables_of(EngineConfig, field))), None)
    if field is None:
        return name
    return field if field in keywords else set_variable(field) or field


def _sentence(error: ValidationError, keywords: Container[str]) -> str:
    parts = []
    for item in error.errors():
        name = _as_given(".".join(str(part) for part in item["loc"]), keywords)
        if item["type"] == "extra_forbidden":
            near = get_close_matches(name, EngineConfig.model_fields, n=1)
            parts.append(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
        else:
            reason = item["msg"].removeprefix("Value error, ")
            parts.append(f"{name}={item['input']!r}: {reason[:1].lower()}{reason[1:]}")
    return "; ".join(parts)
