"""s1_mini: a text-to-speech engine for codec language models and SpeechT5.

The engine, its settings and its responses are imported on first use, so that `import s1_mini` loads neither torch nor
pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from s1_mini.exceptions import MarkupError as MarkupError
from s1_mini.exceptions import NothingToSpeakError as NothingToSpeakError
from s1_mini.exceptions import PackageError as PackageError
from s1_mini.exceptions import ParameterError as ParameterError
from s1_mini.exceptions import QueueFullError as QueueFullError
from s1_mini.exceptions import ReferenceAudioError as ReferenceAudioError
from s1_mini.exceptions import RequestError as RequestError
from s1_mini.exceptions import RequestTimeoutError as RequestTimeoutError
from s1_mini.exceptions import S1MiniError as S1MiniError
from s1_mini.exceptions import StorageError as StorageError
from s1_mini.exceptions import TextError as TextError
from s1_mini.exceptions import TextIdleError as TextIdleError
from s1_mini.exceptions import TextTooLongError as TextTooLongError
from s1_mini.exceptions import VerificationError as VerificationError
from s1_mini.exceptions import VoiceError as VoiceError
from s1_mini.exceptions import VoiceExistsError as VoiceExistsError
from s1_mini.exceptions import VoiceFileError as VoiceFileError
from s1_mini.exceptions import VoiceNotFoundError as VoiceNotFoundError
from s1_mini.exceptions import VoiceReadOnlyError as VoiceReadOnlyError
from s1_mini.exceptions import VoiceUnsupportedError as VoiceUnsupportedError
from s1_mini.text_stream import TextStream as TextStream
from s1_mini.types import AudioChunk as AudioChunk
from s1_mini.types import AudioFormat as AudioFormat
from s1_mini.types import ChunkProfile as ChunkProfile
from s1_mini.types import EngineState as EngineState
from s1_mini.types import FinishReason as FinishReason
from s1_mini.types import Reference as Reference
from s1_mini.types import SamplingParams as SamplingParams
from s1_mini.types import SpokenMark as SpokenMark
from s1_mini.types import Timing as Timing
from s1_mini.types import TTSRequest as TTSRequest
from s1_mini.types import VoiceInfo as VoiceInfo
from s1_mini.types import VoiceSource as VoiceSource
from s1_mini.types import Word as Word
from s1_mini.version import __version__ as __version__

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig as EngineConfig
    from s1_mini.engine import ProductionTTSEngine as ProductionTTSEngine
    from s1_mini.responses import BatchGenerationResponse as BatchGenerationResponse
    from s1_mini.responses import GenerationFailure as GenerationFailure
    from s1_mini.responses import GenerationResponse as GenerationResponse
    from s1_mini.responses import GenerationResult as GenerationResult

_LAZY = {
    "EngineConfig": "s1_mini.config",
    "ProductionTTSEngine": "s1_mini.engine",
    "BatchGenerationResponse": "s1_mini.responses",
    "GenerationFailure": "s1_mini.responses",
    "GenerationResponse": "s1_mini.responses",
    "GenerationResult": "s1_mini.responses",
}
_MODULES = ("s1_mini.exceptions", "s1_mini.text_stream", "s1_mini.types")
_CLASSES = [name for name, value in list(globals().items()) if getattr(value, "__module__", "") in _MODULES]

_LITERALS = ("AudioFormat", "ChunkProfile", "FinishReason", "VoiceSource")

__all__ = ["__version__", *_LITERALS, *_CLASSES, *_LAZY]  # noqa: PLE0604 - strings


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 's1_mini' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
