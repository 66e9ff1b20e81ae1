"""The engine's named voices as the server tells of them. All of it may touch files or the codec: call it in threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from s1_mini.exceptions import RequestError
from s1_mini.server.errors import renamed
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.schemas import VoiceAnswer, VoiceForm, VoicesAnswer

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.types import VoiceInfo

# Where the checkpoint has no voice of such a name, it means the default one.
OPENAI_NAMES = {"alloy", "ash", "ballad", "cedar", "coral", "default", "echo", "fable", "marin", "nova", "onyx"} | {
    "sage",
    "shimmer",
    "verse",
}

FORM_FIELDS = {"voice": "name", "reference_audio": "audio", "reference_text": "text"}  # what the engine calls otherwise


def describe_all(engine: ProductionTTSEngine, member: ReplicaInfo | None) -> VoicesAnswer:
    """Tell of all voices."""
    keeps_added = engine.config.voices_path is not None and (member is None or member.keeps_voices)
    return VoicesAnswer(voices=[_told(info) for info in engine.voices()], keeps_added=keeps_added)


def describe(engine: ProductionTTSEngine, name: str) -> VoiceAnswer:
    """Tell of one voice. Raises `VoiceNotFoundError` or `VoiceFileError`."""
    return _told(engine.describe_voice(name))


async def add(engine: ProductionTTSEngine, form: VoiceForm, audio: bytes, client: str) -> VoiceAnswer:
    """Keep a recording as a named voice. Raises `RequestError`, by the fields of the form, or `EngineError`."""
    try:
        info = await engine.add_voice_async(
            form.name, audio, form.text, description=form.description, replace=form.replace, client=client
        )
        return _told(info)
    except RequestError as error:
        raise renamed(error, FORM_FIELDS) from None


def _told(info: VoiceInfo) -> VoiceAnswer:
    return VoiceAnswer(
        name=info.name,
        description=info.description,
        is_default=info.is_default,
        source=info.source,
        seconds=round(info.seconds, 3),
    )
