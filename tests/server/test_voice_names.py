"""Voice names of other services stand for similar voices of the checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from s1_mini.checkpoint.requests import list_voices
from s1_mini.cli.verb import named_checkpoint
from s1_mini.exceptions import ConfigurationError
from s1_mini.server.settings import ServerSettings
from s1_mini.server.voice_names import (
    CLIENT_VOICES,
    KOKORO_VOICES,
    OPENAI_VOICES,
    POLLY_VOICES,
    assign_voices,
    own_voice,
)
from s1_mini.types import VoiceInfo


def info(name: str, description: str, source: str = "checkpoint") -> VoiceInfo:
    return VoiceInfo(name, description, False, source, 3.0, "", False)  # type: ignore[arg-type]


def test_every_openai_name_is_a_built_in_voice_of_the_same_gender_and_most_voices_are_used() -> None:
    voices = list_voices(named_checkpoint(None), None).infos()
    descriptions = {voice.name: voice.description for voice in voices}

    assigned = assign_voices(OPENAI_VOICES, voices)

    assert assigned.pop("default") is None
    assert all(f" {OPENAI_VOICES[name][0]}," in descriptions[voice] for name, voice in assigned.items() if voice)
    assert None not in assigned.values()
    assert len(set(assigned.values())) >= 8


def test_every_kokoro_name_is_a_built_in_voice_of_its_gender_and_accent() -> None:
    voices = list_voices(named_checkpoint(None), None).infos()
    descriptions = {voice.name: voice.description for voice in voices}

    assigned = assign_voices(CLIENT_VOICES, voices)

    assert {name[:3] for name in KOKORO_VOICES} == {"af_", "am_", "bf_", "bm_"}
    assert all(
        f" {KOKORO_VOICES[name][0]}, {KOKORO_VOICES[name][1]}" in descriptions[assigned[name] or ""]
        for name in KOKORO_VOICES
    )
    assert {name: assigned[name] for name in OPENAI_VOICES} == assign_voices(OPENAI_VOICES, voices)


def test_without_descriptions_every_name_is_the_default_voice() -> None:
    assert set(assign_voices(OPENAI_VOICES, [info("one", ""), info("two", "a woman", "added")]).values()) == {None}


@pytest.mark.parametrize("way", [str, str.upper, str.title, str.lower, " {}\n".format])
@pytest.mark.parametrize("name", ["alloy", "Joanna", "af_bella", "Mapped", "clara"])
def test_a_name_stands_for_the_same_voice_in_any_case_and_with_blanks(name: str, way: Callable[[str], str]) -> None:
    infos = list_voices(named_checkpoint(None), None).infos()
    engine = SimpleNamespace(voices=lambda: infos, has_voice={voice.name for voice in infos}.__contains__)
    settings = SimpleNamespace(voice_names={"Mapped": "anna"})
    state: Any = SimpleNamespace(engine=engine, settings=settings)
    names = CLIENT_VOICES | POLLY_VOICES

    expected = {"Mapped": "anna", "clara": "clara"}.get(name) or assign_voices(names, infos)[name]

    assert str(asyncio.run(own_voice(state, way(name), names))).lower() == expected


def test_a_name_of_megabytes_is_compared_with_no_name() -> None:
    class Untouched(str):
        def lower(self) -> str:
            raise AssertionError

        strip = lower  # type: ignore[assignment]

    state: Any = SimpleNamespace(engine=None, settings=None)

    assert asyncio.run(own_voice(state, Untouched("é" * 2000))) == "é" * 2000


def test_the_setting_has_pairs_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_SERVER_VOICE_NAMES", "alloy=clara, nova = anna")
    assert ServerSettings().voice_names == {"alloy": "clara", "nova": "anna"}

    monkeypatch.setenv("S1_MINI_SERVER_VOICE_NAMES", "alloy")
    with pytest.raises(ConfigurationError, match="not a list such as alloy=clara"):
        ServerSettings()
