"""The named voices of a checkpoint and of a directory, without an engine and without loading torch."""

from __future__ import annotations

from pathlib import Path

from s1_mini.families.find import Checkpoint
from s1_mini.voices.library import CheckpointVoices
from s1_mini.voices.registry import VoiceRegistry


def list_voices(checkpoint: Checkpoint, voices_path: Path | None) -> VoiceRegistry:
    """Return the voices of a checkpoint and of a directory. Raises `CheckpointError` or `ConfigurationError`."""
    form = checkpoint.description.voice
    return VoiceRegistry.open(CheckpointVoices.listed(checkpoint.directory, form), form, voices_path)
