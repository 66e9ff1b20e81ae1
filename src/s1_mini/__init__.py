"""s1_mini: a text-to-speech engine for codec-language-model voices.

The front door. Names are resolved on first use, so that `import s1_mini` loads neither torch nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from s1_mini.version import __version__

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig as EngineConfig
    from s1_mini.engine import ProductionTTSEngine as ProductionTTSEngine
    from s1_mini.exceptions import S1MiniError as S1MiniError
    from s1_mini.types import AudioChunk as AudioChunk
    from s1_mini.types import BatchGenerationResponse as BatchGenerationResponse
    from s1_mini.types import GenerationResponse as GenerationResponse
    from s1_mini.types import Reference as Reference
    from s1_mini.types import SamplingParams as SamplingParams
    from s1_mini.types import TTSRequest as TTSRequest

_HOMES = {
    "AudioChunk": "s1_mini.types",
    "BatchGenerationResponse": "s1_mini.types",
    "EngineConfig": "s1_mini.config",
    "GenerationResponse": "s1_mini.types",
    "ProductionTTSEngine": "s1_mini.engine",
    "Reference": "s1_mini.types",
    "S1MiniError": "s1_mini.exceptions",
    "SamplingParams": "s1_mini.types",
    "TTSRequest": "s1_mini.types",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the keys are strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 's1_mini' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
