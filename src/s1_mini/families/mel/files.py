"""Where the parts of a checkpoint directory lie. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.mel.config import MelConfig
from s1_mini.weights.directory import find_model, read_json

FOLDERS = ("vocoder", "hifigan")
KEY = "vocoder"  # of config.json, where the vocoder lies inside the model's own files


@dataclass(frozen=True)
class VocoderFiles:
    """A vocoder's config, the folder of its tensors, and what their names begin with there."""

    config: HifiGanConfig
    folder: Path
    prefix: str = ""

    @property
    def weights(self) -> Path:
        """Give the file that holds its tensors. Raises `CheckpointFileError`."""
        return find_model(self.folder)


def find_vocoder(directory: Path) -> VocoderFiles:
    """Find the vocoder of a checkpoint: in a folder beside the model, or inside it. Raises `CheckpointError`."""
    for name in FOLDERS:
        folder = directory / name
        if folder.is_dir():
            return VocoderFiles(HifiGanConfig.from_json(read_json(folder / "config.json")), folder)
    told = read_json(directory / "config.json").get(KEY)
    if not isinstance(told, dict):
        raise CheckpointFileError(
            f"{directory} has no vocoder: neither a folder {' or '.join(f'{name}/' for name in FOLDERS)} with its "
            f"config.json and weights, nor {KEY!r} in its own config.json"
        )
    return VocoderFiles(HifiGanConfig.from_json(told), directory, f"{KEY}.")


def read_configs(directory: Path) -> tuple[MelConfig, VocoderFiles]:
    """Read both configs, and no weights. Raises `CheckpointError`."""
    config, vocoder = MelConfig.from_json(read_json(directory / "config.json")), find_vocoder(directory)
    if config.num_bins != vocoder.config.num_bins:
        raise CheckpointMismatchError(
            f"the vocoder takes {vocoder.config.num_bins} mel bins; config.json has num_mel_bins={config.num_bins}"
        )
    return config, vocoder
