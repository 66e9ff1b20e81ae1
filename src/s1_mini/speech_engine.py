"""`SpeechEngine`, the interface of an engine wherever it runs: in this process, in its own, or on a cluster."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError, EngineNotReadyError
from s1_mini.metrics import EngineMetrics, MetricFamily, gpu_memory
from s1_mini.runtime.process import claim_process, refuse_fork
from s1_mini.types import Audio, EngineState, Normalize, OnUnsupported, SpeechOptions, TTSRequest, VoiceInfo

if TYPE_CHECKING:
    from types import TracebackType

    from s1_mini.core.output_queue import Output
    from s1_mini.families.base import Description

NO_GPU = {"used_gb": 0.0, "total_gb": 0.0}


class Running(Protocol):
    """What an engine has between `start` and `stop`; the methods are described in `SpeechEngine`."""

    @property
    def description(self) -> Description: ...

    @property
    def has_word_times(self) -> bool: ...

    @property
    def num_slots(self) -> int: ...

    def state(self) -> EngineState: ...

    def health(self) -> dict[str, Any]: ...

    def families(self) -> list[MetricFamily]: ...

    def close(self, *, drains: bool, timeout_s: float | None) -> None: ...


class SpeechEngine(ABC):
    """What a server needs of an engine. Safe to call from several threads.

    Methods and properties that need the loaded checkpoint raise `EngineNotReadyError` before `start` and after `stop`.
    In a forked child of a process that has started an engine, all of them do.
    """

    def __init__(self, config: EngineConfig | None = None, **settings: Any) -> None:
        """Take an `EngineConfig`, or its fields as keywords, such as `checkpoint_path`; `start` loads the checkpoint.

        Raises `ConfigurationError` for both at once, another type, and the errors of `EngineConfig`.
        """
        self.config = _config_of(config, settings)
        self.metrics = EngineMetrics()
        self._running: Running | None = None
        self._was_stopped = False
        self._lifecycle = threading.Lock()

    def prepare(self) -> None:
        """Begin, if possible, what `start` needs and what does not keep this process from other work."""
        refuse_fork()

    def start(self) -> None:
        """Load the checkpoint and generate a short text with it; does nothing if it is loaded.

        Raises `CheckpointError`, `ConfigurationError`, `EngineError` if that text cannot be generated, and
        `torch.OutOfMemoryError`.
        """
        claim_process()
        with self._lifecycle:
            if self._running is None:
                self._running = self._load(self.config)

    def stop(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Accept no more requests, finish those in progress, and release the checkpoint.

        Without `drain`, or after `timeout_s`, requests in progress end with `EngineNotReadyError`.
        """
        refuse_fork()
        with self._lifecycle:
            running, self._running = self._running, None
            if running is not None:
                self._was_stopped = True
                running.close(drains=drain, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=kind is None)

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.start)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.stop)  # `stop` waits until `start` has finished
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop, drain=kind is None)

    @property
    def description(self) -> Description:
        """Properties of the loaded checkpoint, such as the languages that a request may choose."""
        return self._ready().description

    @property
    def has_word_times(self) -> bool:
        """Whether the loaded checkpoint reports when words are spoken (`TTSRequest.word_times`)."""
        return self._ready().has_word_times

    @property
    def num_slots(self) -> int:
        """Maximum number of concurrent sentence pieces; before the start, the configured number, or 1."""
        refuse_fork()
        running = self._running
        return running.num_slots if running else self.config.max_batch_size or 1

    def state(self) -> EngineState:
        """Return whether the engine is ready, and how full its queue is. Cheap enough to call for every request."""
        refuse_fork()
        running = self._running
        return EngineState("stopped") if running is None else running.state()

    def health_check(self) -> dict[str, Any]:
        """Return state, placement and memory; never waits for requests. Raises the error of a GPU that fails."""
        refuse_fork()
        running = self._running
        return {"status": "stopped", "ready": False, "vram": NO_GPU} if running is None else running.health()

    def families(self) -> list[MetricFamily]:
        """Return all current metrics (`metrics.py`). Raises the error of a GPU that fails."""
        refuse_fork()
        running = self._running
        return [*self.metrics.families(), gpu_memory(NO_GPU)] if running is None else running.families()

    @abstractmethod
    def _load(self, config: EngineConfig) -> Running:
        """Load the checkpoint. Raises the errors of `start`."""

    def _ready(self) -> Running:
        refuse_fork()
        running = self._running
        if running is None:
            if self._was_stopped:
                raise EngineNotReadyError("the engine was stopped; start() loads it again")
            raise EngineNotReadyError("the engine is not started; call start() or use it in a with block")
        return running

    @abstractmethod
    def voice_names(self) -> list[str]:
        """Return the names of all voices, sorted, without opening any file."""

    def has_voice(self, name: str) -> bool:
        """Return whether `name` is one of `voice_names`."""
        return name in self.voice_names()

    @abstractmethod
    def voices(self) -> list[VoiceInfo]:
        """Return all named voices, sorted: the checkpoint's and added ones, without those whose files are broken.

        Raises `EngineError` if the directory of added voices cannot be read.
        """

    @abstractmethod
    def describe_voice(self, name: str) -> VoiceInfo:
        """Return one voice. Raises `VoiceNotFoundError`, or `VoiceFileError` if it exists but cannot be used."""

    @abstractmethod
    async def add_voice_async(
        self,
        name: str,
        reference_audio: Audio,
        reference_text: str = "",
        *,
        description: str = "",
        replace: bool = False,
        client: str = "",
    ) -> VoiceInfo:
        """Add a voice as `add_voice` does, without blocking the event loop; a cancelled call adds no voice.

        If recordings of several clients wait to be encoded, the clients take turns (round robin).
        """

    @abstractmethod
    def delete_voice(self, name: str) -> None:
        """Delete an added voice, even if its file is broken; requests in progress keep it.

        Raises `VoiceNotFoundError`, `VoiceReadOnlyError`, or `EngineError` if the file cannot be deleted.
        """

    @abstractmethod
    async def prepare_reference_async(
        self, reference_audio: Audio, reference_text: str = "", *, client: str = ""
    ) -> None:
        """Encode a reference now, so that later requests with it do not wait.

        If recordings of several clients wait, the clients take turns (round robin).

        Raises `RequestError` for an invalid reference, `EngineError`, or `CheckpointError` if the checkpoint's encoder
        is missing or invalid.
        """

    @abstractmethod
    def submit(self, request: TTSRequest, *, streams: bool = True, as_int16: bool = False) -> Output:
        """Accept a request and return its audio at once; iterate over it in a thread or on an event loop.

        `streams=False` means that the audio is needed only as a whole, so that streams are scheduled first. With
        `as_int16`, the caller also takes int16 samples, which an engine in another process sends. Raises
        `ParameterError` for an invalid option, and `EngineError` if the engine is not running; the output raises all
        other errors.
        """

    @abstractmethod
    def count_tokens(
        self, text: str, *, normalize: Normalize | None = None, on_unsupported: OnUnsupported | None = None
    ) -> int:
        """Count the tokens of a text of any length, without those of the voice.

        Raises `RequestError` or `EngineError`.
        """


def _config_of(config: object, settings: Mapping[str, Any]) -> EngineConfig:
    if isinstance(config, EngineConfig):
        if settings:
            raise ConfigurationError(
                f"config cannot be combined with {', '.join(settings)}; put them into EngineConfig(...)"
            )
        return config
    if config is not None:
        given = f'; for a checkpoint, use checkpoint_path="{config}"' if isinstance(config, str | Path) else ""
        raise ConfigurationError(f"config must be an EngineConfig, not {type(config).__name__}{given}")
    for name in settings:
        if name in SpeechOptions.__optional_keys__ and name not in EngineConfig.model_fields:
            raise ConfigurationError(
                f"{name} is not a setting but an option of a request: give it to generate or stream"
            )
    return EngineConfig(**settings)
