"""SpeechT5 as the registry knows it: everything that needs torch is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.families.mel.settings import STAGES, MelSettings
from s1_mini.weights.directory import MODEL_NAMES, pick_files

if TYPE_CHECKING:
    import torch

    from s1_mini.capacity.sizes import Formats, Sizes
    from s1_mini.families.base import Check, Conversion, Description, Form, Placement
    from s1_mini.families.mel.loaded import LoadedMel
    from s1_mini.weights.write import Member

AROUND = 2  # tokens around a text: the space before it and its end
MIN_PIECE_BYTES = 4  # a character


class Mel:
    """SpeechT5 and what is built alike: characters to a mel, and HiFi-GAN."""

    title = "SpeechT5"
    settings = MelSettings
    stage_names = STAGES
    needed_files = (("config.json",), ("spm_char.model",), MODEL_NAMES)
    random_sizes: Mapping[str, str] = {"tiny": "a megabyte or so", "full": "SpeechT5's own"}

    def pick_files(self, names: Collection[str]) -> list[str]:
        from s1_mini.families.mel.config import FOLDERS

        folder = next((folder for folder in FOLDERS if f"{folder}/config.json" in names), FOLDERS[0])
        vocoder = ((f"{folder}/config.json",), tuple(f"{folder}/{name}" for name in MODEL_NAMES))
        return pick_files(names, (*self.needed_files, *vocoder), ("voices/*.npy", "voices/*.safetensors"))

    def describe(self, directory: Path) -> Description:
        from s1_mini.families.base import Description
        from s1_mini.families.mel.config import read_configs
        from s1_mini.families.mel.voice import voice_format

        config, vocoder = read_configs(directory)
        rate = vocoder.config.sample_rate
        form = voice_format(config.speaker_size, rate)
        return Description(rate, form, max_piece_bytes=max(MIN_PIECE_BYTES, config.max_text - AROUND), sampling=())

    def sizes(self, directory: Path | None, formats: Formats, prefix_cache_bytes: int) -> Sizes:
        from s1_mini.codecs.hifigan.config import HifiGanConfig
        from s1_mini.families.mel.config import MelConfig, read_configs
        from s1_mini.families.mel.costs import measure_sizes
        from s1_mini.families.mel.random import FULL_MODEL

        if directory is None:
            return measure_sizes(MelConfig.from_json(FULL_MODEL), HifiGanConfig(), formats, prefix_cache_bytes)
        config, vocoder = read_configs(directory)
        return measure_sizes(config, vocoder.config, formats, prefix_cache_bytes)

    def open(self, directory: Path, placement: Placement, settings: MelSettings) -> LoadedMel:
        from s1_mini.families.mel.loaded import open_mel

        return open_mel(directory, placement, settings)

    def files(self, directory: Path, conversion: Conversion) -> list[Member]:
        from s1_mini.families.mel.convert import compact_files

        return compact_files(directory, conversion)

    def verify(
        self, directory: Path, oracle: Mapping[str, Any], device: torch.device, tolerance: float
    ) -> Iterator[Check] | None:
        from s1_mini.families.mel.verify import verify_mel

        return verify_mel(directory, oracle, device, tolerance)

    def write_random(self, directory: Path, *, size: str, form: Form, seed: int) -> None:
        from s1_mini.families.mel.random import write_random_checkpoint

        write_random_checkpoint(directory, size=size, form=form, seed=seed)
