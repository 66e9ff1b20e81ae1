"""The named voices of a checkpoint and of a directory, without an engine: told in a moment, for torch is not loaded."""

from __future__ import annotations

from s1_mini.codecs.dac.config import read_dac_config
from s1_mini.config import EngineConfig
from s1_mini.voices.added import AddedVoices, MemoryVoices, VoiceDirectory
from s1_mini.voices.fingerprint import fingerprint
from s1_mini.voices.library import VoiceLibrary
from s1_mini.voices.roster import Roster
from s1_mini.weights.directory import check_files, find_checkpoint, find_tensors


def list_voices(config: EngineConfig) -> Roster:
    """Give the voices that an engine of these settings would have. Raises `CheckpointError` or `ConfigurationError`."""
    directory = check_files(find_checkpoint(config.checkpoint_path))
    codec, own = read_dac_config(directory), fingerprint([find_tensors(directory, "codec")])
    added: AddedVoices = MemoryVoices(own) if config.voices_path is None else VoiceDirectory(config.voices_path, own)
    return Roster(VoiceLibrary.listed(directory), added, frame_rate=codec.sample_rate / codec.samples_per_frame)
