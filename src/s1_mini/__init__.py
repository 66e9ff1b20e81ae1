"""s1_mini: a text-to-speech engine for codec-language-model voices.

Names are resolved on first use, so that `import s1_mini` loads neither torch nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from s1_mini.version import __version__ as __version__

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig as EngineConfig
    from s1_mini.engine import ProductionTTSEngine as ProductionTTSEngine
    from s1_mini.exceptions import CapacityError as CapacityError
    from s1_mini.exceptions import CheckpointError as CheckpointError
    from s1_mini.exceptions import CheckpointFileError as CheckpointFileError
    from s1_mini.exceptions import CheckpointMismatchError as CheckpointMismatchError
    from s1_mini.exceptions import CheckpointNotFoundError as CheckpointNotFoundError
    from s1_mini.exceptions import ConfigurationError as ConfigurationError
    from s1_mini.exceptions import DeploymentError as DeploymentError
    from s1_mini.exceptions import EngineError as EngineError
    from s1_mini.exceptions import EngineNotReadyError as EngineNotReadyError
    from s1_mini.exceptions import GenerationError as GenerationError
    from s1_mini.exceptions import NothingToSpeakError as NothingToSpeakError
    from s1_mini.exceptions import PackageError as PackageError
    from s1_mini.exceptions import ParameterError as ParameterError
    from s1_mini.exceptions import QueueFullError as QueueFullError
    from s1_mini.exceptions import ReferenceAudioError as ReferenceAudioError
    from s1_mini.exceptions import RequestError as RequestError
    from s1_mini.exceptions import RequestTimeoutError as RequestTimeoutError
    from s1_mini.exceptions import S1MiniError as S1MiniError
    from s1_mini.exceptions import TextError as TextError
    from s1_mini.exceptions import VerificationError as VerificationError
    from s1_mini.exceptions import VoiceError as VoiceError
    from s1_mini.exceptions import VoiceExistsError as VoiceExistsError
    from s1_mini.exceptions import VoiceFileError as VoiceFileError
    from s1_mini.exceptions import VoiceNotFoundError as VoiceNotFoundError
    from s1_mini.exceptions import VoiceReadOnlyError as VoiceReadOnlyError
    from s1_mini.exceptions import VoiceUnsupportedError as VoiceUnsupportedError
    from s1_mini.responses import BatchGenerationResponse as BatchGenerationResponse
    from s1_mini.responses import GenerationFailure as GenerationFailure
    from s1_mini.responses import GenerationResponse as GenerationResponse
    from s1_mini.responses import GenerationResult as GenerationResult
    from s1_mini.types import AudioChunk as AudioChunk
    from s1_mini.types import AudioFormat as AudioFormat
    from s1_mini.types import ChunkProfile as ChunkProfile
    from s1_mini.types import EngineState as EngineState
    from s1_mini.types import FinishReason as FinishReason
    from s1_mini.types import Reference as Reference
    from s1_mini.types import SamplingParams as SamplingParams
    from s1_mini.types import Timing as Timing
    from s1_mini.types import TTSRequest as TTSRequest
    from s1_mini.types import VoiceInfo as VoiceInfo
    from s1_mini.types import VoiceSource as VoiceSource

_HOMES = {
    "AudioChunk": "s1_mini.types",
    "AudioFormat": "s1_mini.types",
    "BatchGenerationResponse": "s1_mini.responses",
    "CapacityError": "s1_mini.exceptions",
    "CheckpointError": "s1_mini.exceptions",
    "CheckpointFileError": "s1_mini.exceptions",
    "CheckpointMismatchError": "s1_mini.exceptions",
    "CheckpointNotFoundError": "s1_mini.exceptions",
    "ChunkProfile": "s1_mini.types",
    "ConfigurationError": "s1_mini.exceptions",
    "DeploymentError": "s1_mini.exceptions",
    "EngineConfig": "s1_mini.config",
    "EngineError": "s1_mini.exceptions",
    "EngineNotReadyError": "s1_mini.exceptions",
    "EngineState": "s1_mini.types",
    "FinishReason": "s1_mini.types",
    "GenerationError": "s1_mini.exceptions",
    "GenerationFailure": "s1_mini.responses",
    "GenerationResponse": "s1_mini.responses",
    "GenerationResult": "s1_mini.responses",
    "NothingToSpeakError": "s1_mini.exceptions",
    "PackageError": "s1_mini.exceptions",
    "ParameterError": "s1_mini.exceptions",
    "ProductionTTSEngine": "s1_mini.engine",
    "QueueFullError": "s1_mini.exceptions",
    "Reference": "s1_mini.types",
    "ReferenceAudioError": "s1_mini.exceptions",
    "RequestError": "s1_mini.exceptions",
    "RequestTimeoutError": "s1_mini.exceptions",
    "S1MiniError": "s1_mini.exceptions",
    "SamplingParams": "s1_mini.types",
    "TTSRequest": "s1_mini.types",
    "TextError": "s1_mini.exceptions",
    "Timing": "s1_mini.types",
    "VerificationError": "s1_mini.exceptions",
    "VoiceError": "s1_mini.exceptions",
    "VoiceExistsError": "s1_mini.exceptions",
    "VoiceFileError": "s1_mini.exceptions",
    "VoiceInfo": "s1_mini.types",
    "VoiceNotFoundError": "s1_mini.exceptions",
    "VoiceReadOnlyError": "s1_mini.exceptions",
    "VoiceUnsupportedError": "s1_mini.exceptions",
    "VoiceSource": "s1_mini.types",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the keys are strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 's1_mini' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
