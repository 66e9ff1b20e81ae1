"""The named voices of a checkpoint and of a directory, without an engine and without loading torch."""

from __future__ import annotations

from s1_mini.config import EngineConfig
from s1_mini.families.find import find_checkpoint
from s1_mini.families.registry import check_files, family_of
from s1_mini.voices.library import CheckpointVoices
from s1_mini.voices.registry import VoiceRegistry


def list_voices(config: EngineConfig) -> VoiceRegistry:
    """Return the voices of an engine with these settings. Raises `CheckpointError` or `ConfigurationError`."""
    directory = check_files(find_checkpoint(config.checkpoint_path))
    form = family_of(directory).describe(directory).voice
    return VoiceRegistry.open(CheckpointVoices.listed(directory, form), form, config.voices_path)
