"""The engine's named voices as the server tells of them: the one place that knows how the engine offers them.

All of it may touch files or the codec, and is called in a thread, except `check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import EngineNotReadyError, VoiceError
from s1_mini.server.errors import VoiceNotFoundError, VoicesUnsupportedError
from s1_mini.server.schemas import VoiceAnswer
from s1_mini.voices.library import NAME

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

# Where the checkpoint has no voice of such a name, it means the default one.
OPENAI_NAMES = {"alloy", "ash", "ballad", "cedar", "coral", "default", "echo", "fable", "marin", "nova", "onyx"} | {
    "sage",
    "shimmer",
    "verse",
}


def check(engine: ProductionTTSEngine, name: str) -> None:
    """Raise `VoiceNotFoundError` unless there is a voice of this name; cheap enough for an event loop."""
    known = names(engine)
    if name not in known:
        if not NAME.fullmatch(name):
            raise VoiceNotFoundError("voice", f"{name!r} is no name of a voice; use a-z, 0-9, - and _")
        raise VoiceNotFoundError("voice", f"{name!r} is not a voice here; there are: {', '.join(known) or 'none'}")


def names(engine: ProductionTTSEngine) -> list[str]:
    """Give the names of all voices, sorted."""
    given: list[str] = engine.health_check().get("voices", [])
    return given


def describe_all(engine: ProductionTTSEngine) -> list[VoiceAnswer]:
    """Tell of all voices."""
    if hasattr(engine, "voices"):
        return [_told(info) for info in engine.voices()]
    return [_told_by_internals(engine, name) for name in names(engine)]


def describe(engine: ProductionTTSEngine, name: str) -> VoiceAnswer:
    """Tell of one voice. Raises `VoiceNotFoundError`."""
    check(engine, name)
    if hasattr(engine, "describe_voice"):
        return _told(engine.describe_voice(name))
    return _told_by_internals(engine, name)


def add(engine: ProductionTTSEngine, name: str, audio: bytes, text: str, description: str) -> VoiceAnswer:
    """Keep a recording as a named voice. Raises `VoiceError` or `ReferenceAudioError`."""
    if not hasattr(engine, "add_voice"):
        raise VoicesUnsupportedError("this engine keeps no voices; send reference_audio with each request")
    return _told(engine.add_voice(name, audio, text, description=description))


def delete(engine: ProductionTTSEngine, name: str) -> None:
    """Forget an added voice. Raises `VoiceNotFoundError`, or `VoiceError` for one of the checkpoint."""
    check(engine, name)
    if not hasattr(engine, "delete_voice"):
        raise VoiceError("name", f"{name!r} belongs to the checkpoint and cannot be deleted")
    engine.delete_voice(name)


def _told(info: Any) -> VoiceAnswer:
    return VoiceAnswer(
        name=info.name,
        description=info.description,
        is_default=info.is_default,
        source=info.source,
        seconds=round(info.seconds, 3),
    )


def _told_by_internals(engine: ProductionTTSEngine, name: str) -> VoiceAnswer:
    """Tell of a checkpoint's voice where the engine itself does not yet."""
    running = engine._running
    if running is None:
        raise EngineNotReadyError("the engine is not started")
    speaker = running[0]
    voice = speaker.voices.describe(name)
    return VoiceAnswer(
        name=name,
        description=voice.description,
        is_default=voice.is_default,
        source="checkpoint",
        seconds=round(voice.voice.codes.shape[1] * speaker.codec.samples_per_frame / speaker.codec.sample_rate, 3),
    )
