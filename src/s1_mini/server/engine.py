"""The engine as the server sees it: `ProductionTTSEngine`, or `EngineProcess` for an engine in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig
    from s1_mini.core.output_queue import Output
    from s1_mini.families.base import Description
    from s1_mini.metrics import MetricFamily
    from s1_mini.types import Audio, EngineState, Normalize, OnUnsupported, TTSRequest, VoiceInfo


class SpeechEngine(Protocol):
    """The methods of `ProductionTTSEngine` that the server uses, and that are described there."""

    config: EngineConfig

    def __init__(self, config: EngineConfig | None = None) -> None: ...

    def start(self) -> None: ...

    def stop(self, *, drain: bool = True, timeout_s: float | None = None) -> None: ...

    @property
    def description(self) -> Description: ...

    @property
    def has_word_times(self) -> bool: ...

    @property
    def num_slots(self) -> int: ...

    def state(self) -> EngineState: ...

    def health_check(self) -> dict[str, Any]: ...

    def families(self) -> list[MetricFamily]: ...

    def voice_names(self) -> list[str]: ...

    def voices(self) -> list[VoiceInfo]: ...

    def describe_voice(self, name: str) -> VoiceInfo: ...

    async def add_voice_async(
        self,
        name: str,
        reference_audio: Audio,
        reference_text: str = "",
        *,
        description: str = "",
        replace: bool = False,
        client: str = "",
    ) -> VoiceInfo: ...

    def delete_voice(self, name: str) -> None: ...

    async def prepare_reference_async(
        self, reference_audio: Audio, reference_text: str = "", *, client: str = ""
    ) -> None: ...

    def submit(self, request: TTSRequest, *, streams: bool = True, as_int16: bool = False) -> Output: ...

    def count_tokens(
        self, text: str, *, normalize: Normalize | None = None, on_unsupported: OnUnsupported | None = None
    ) -> int: ...
