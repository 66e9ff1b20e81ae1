"""The named voices of a checkpoint and of a directory, without an engine: told in a moment, for torch is not loaded."""

from __future__ import annotations

from s1_mini.config import EngineConfig
from s1_mini.families.find import find_checkpoint
from s1_mini.families.registry import check_files, family_of
from s1_mini.voices.added import AddedVoices, MemoryVoices, VoiceDirectory
from s1_mini.voices.library import VoiceLibrary
from s1_mini.voices.roster import Roster


def list_voices(config: EngineConfig) -> Roster:
    """Give the voices that an engine of these settings would have. Raises `CheckpointError` or `ConfigurationError`."""
    directory = check_files(find_checkpoint(config.checkpoint_path))
    form = family_of(directory).describe(directory).voice
    added: AddedVoices = MemoryVoices(form) if config.voices_path is None else VoiceDirectory(config.voices_path, form)
    return Roster(VoiceLibrary.listed(directory, form), added)
