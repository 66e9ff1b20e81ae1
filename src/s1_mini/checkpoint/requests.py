"""List voices and check requests without loading an engine, which would take seconds.

Torch is imported only to read a voice file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from s1_mini.config import EngineConfig
from s1_mini.exceptions import NothingToSpeakError
from s1_mini.families.find import Checkpoint
from s1_mini.runtime.planner import Planner
from s1_mini.text.form import TextForm
from s1_mini.types import Reference, TTSRequest
from s1_mini.voices.library import CheckpointVoices
from s1_mini.voices.reference import ReferenceReader
from s1_mini.voices.registry import VoiceRegistry
from s1_mini.weights.directory import read_json


def list_voices(checkpoint: Checkpoint, voices_path: Path | None) -> VoiceRegistry:
    """Return the voices of a checkpoint and of a directory. Raises `CheckpointError` or `ConfigurationError`."""
    form = checkpoint.description.voice
    return VoiceRegistry.open(CheckpointVoices.listed(checkpoint.directory, form), form, voices_path)


def check_request(
    request: TTSRequest, config: EngineConfig, checkpoint: Checkpoint, texts: Iterable[str] = ()
) -> list[str]:
    """Check a request with the rules of an engine with these settings, as far as possible without weights.

    `texts` are further texts with the same options. Returns all texts with something to speak. Raises
    `NothingToSpeakError` if there are none, another `RequestError`, `CheckpointError` or `ConfigurationError`.
    """
    checkpoint.description.check(request)
    form = TextForm.from_config(read_json(checkpoint.directory / "config.json"))
    voices = list_voices(checkpoint, config.voices_path)
    planner = Planner(config, form, checkpoint.description, voices, voices.lexicons(config.lexicon_path))
    spoken: list[str] = []
    silent: list[NothingToSpeakError] = []
    is_plain = False
    for text in (request.text, *texts):
        given = replace(request, text=text)
        try:
            is_plain |= not planner.plan(given).has_markup
            spoken.append(text)
        except NothingToSpeakError as error:
            silent.append(error)
    if not spoken:
        raise silent[0]
    if is_plain:
        planner.check_voice(request)
        if request.voice is not None:
            voices.info(request.voice)
        for reference in request.references:
            check_reference(reference, config, checkpoint)
    return spoken


def check_reference(reference: Reference, config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Check a reference with the rules of an engine with these settings, as far as possible without weights.

    Raises `RequestError`, `CheckpointError` or `ConfigurationError`.
    """
    form = checkpoint.description.voice
    ReferenceReader(form, config.max_reference_s, config.max_reference_bytes, config.max_text_length).check(reference)
