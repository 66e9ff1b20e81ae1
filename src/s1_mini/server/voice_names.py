"""Voice names of other services.

Each name stands for a voice of the checkpoint with the same gender and, if possible, the same accent. If no voice has
that gender, it stands for the default voice.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from s1_mini.server.state import ServerState
from s1_mini.types import TTSRequest, VoiceInfo

if TYPE_CHECKING:
    from s1_mini.server.settings import ServerSettings
    from s1_mini.speech_engine import SpeechEngine

MAX_NAME_LENGTH = 1000  # characters; no voice has a longer name, which would be slow to compare

# OpenAI's names with the gender and accent of its voices, as heard by listeners; OpenAI does not publish them.
OPENAI_VOICES = {
    "alloy": ("woman", "American"),
    "ash": ("man", "American"),
    "ballad": ("man", "British"),
    "cedar": ("man", "American"),
    "coral": ("woman", "American"),
    "default": ("", ""),  # the default voice
    "echo": ("man", "American"),
    "fable": ("man", "British"),
    "marin": ("woman", "American"),
    "nova": ("woman", "American"),
    "onyx": ("man", "American"),
    "sage": ("woman", "British"),
    "shimmer": ("woman", "British"),
    "verse": ("man", "American"),
}

# Kokoro's English names, whose first two letters are accent and gender
_KOKORO = {
    ("woman", "American"): "alloy aoede bella heart jessica kore nicole nova river sarah sky",
    ("man", "American"): "adam echo eric fenrir liam michael onyx puck santa",
    ("woman", "British"): "alice emma isabella lily",
    ("man", "British"): "daniel fable george lewis",
}

# Polly's English names with the gender and accent of its documentation
_POLLY = {
    ("woman", "American"): "Danielle Ivy Joanna Kendra Kimberly Ruth Salli",
    ("man", "American"): "Gregory Joey Justin Kevin Matthew Stephen",
    ("woman", "British"): "Amy Emma",
    ("man", "British"): "Arthur Brian",
    ("woman", "Australian"): "Nicole Olivia",
    ("man", "Australian"): "Russell",
    ("woman", "Indian"): "Aditi Kajal Raveena",
    ("woman", "Irish"): "Niamh",
    ("woman", "New Zealand"): "Aria",
    ("woman", "Singaporean"): "Jasmine",
    ("woman", "South African"): "Ayanda",
    ("man", "Welsh"): "Geraint",
}
POLLY_VOICES = {name: traits for traits, names in _POLLY.items() for name in names.split()}
KOKORO_VOICES = {
    f"{accent[0].lower()}{'f' if gender == 'woman' else 'm'}_{name}": (gender, accent)
    for (gender, accent), names in _KOKORO.items()
    for name in names.split()
}
CLIENT_VOICES = OPENAI_VOICES | KOKORO_VOICES


def assign_voices(names: Mapping[str, tuple[str, str]], voices: Sequence[VoiceInfo]) -> dict[str, str | None]:
    """Return the voice for each of `names` (gender and accent); None is the default voice.

    Voices are matched by the words of their descriptions. Names with the same gender and accent get different voices if
    there are enough.
    """
    words = {voice.name: set(re.findall(r"\w+", voice.description)) for voice in voices if voice.source == "checkpoint"}
    used: Counter[str] = Counter()
    assigned: dict[str, str | None] = {}
    for name, (gender, accent) in names.items():
        same = sorted(voice for voice in words if gender in words[voice])
        best = min(same, key=lambda voice: (accent not in words[voice], used[voice]), default=None)
        if best is not None:
            used[best] += 1
        assigned[name] = best
    return assigned


async def own_voice(
    state: ServerState, name: str | None, names: Mapping[str, tuple[str, str]] = CLIENT_VOICES
) -> str | None:
    """Return our name for the requested voice `name`; None is the default voice.

    Names of other services are mapped by the settings, or else by `names`, in any case and with blanks around them. An
    unknown name is returned unchanged; the engine refuses it. `state` is the application's.
    """
    if name is None or len(name) > MAX_NAME_LENGTH:
        return name
    plain = name.strip()
    if state.engine.has_voice(plain.lower()):
        return plain
    if (mapped := _named(state.settings.voice_names, plain)) is not None:
        return str(state.settings.voice_names[mapped])
    if (known := _named(names, plain)) is None:
        return name
    return assign_voices(names, await asyncio.to_thread(state.engine.voices))[known]


def _named(names: Iterable[str], given: str) -> str | None:
    """Return the one of `names` that `given` spells, perhaps in another case; the same case has precedence."""
    same = [name for name in names if name.lower() == given.lower()]
    return given if given in same else next(iter(same), None)


def names_in_markup(state: ServerState) -> frozenset[str]:
    """Return the voice names that markup may use, in lower case; `state` is the application's."""
    names = (*OPENAI_VOICES, *POLLY_VOICES, *state.settings.voice_names)
    return frozenset({*state.engine.voice_names(), *map(str.lower, names)})


async def with_voice_names(engine: SpeechEngine, settings: ServerSettings, request: TTSRequest) -> TTSRequest:
    """Return a request whose markup may use the voice names of other services."""
    if request.text_type == "text" and not (engine.config.accept_ssml and request.text.lstrip().startswith("<")):
        return request
    if "<voice" not in request.text and "[" not in request.text:
        return request
    voices = await asyncio.to_thread(engine.voices)
    names = assign_voices(OPENAI_VOICES, voices) | assign_voices(POLLY_VOICES, voices) | settings.voice_names
    own = {voice.name: voice.name for voice in voices}
    return replace(request, voice_names={name.lower(): own.get(name.lower(), names[name]) for name in names})
