"""SpeechT5's entry in the registry of families; `families/base.py: Family` describes the methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from s1_mini.families.mel.settings import FOLDERS, STAGES, MelSettings
from s1_mini.families.registry import deferred
from s1_mini.weights.directory import MODEL_NAMES, pick_files


class Mel:
    """The family of SpeechT5, and of other models with its architecture."""

    title = "SpeechT5"
    settings = MelSettings
    stage_names = STAGES
    in_float16 = True
    needed_files = (("config.json",), ("spm_char.model",), MODEL_NAMES)
    random_sizes: Mapping[str, str] = {"tiny": "about a megabyte", "full": "the size of SpeechT5"}

    describe = deferred("s1_mini.families.mel.config", "describe")
    sizes = deferred("s1_mini.families.mel.costs", "measure_sizes")
    open = deferred("s1_mini.families.mel.loaded", "open_mel")
    files = deferred("s1_mini.families.mel.weights", "compact_files")
    verify = deferred("s1_mini.families.mel.verify", "verify_mel")
    write_random = deferred("s1_mini.families.mel.random", "write_random_checkpoint")

    def check_config(self, values: Mapping[str, Any]) -> None:
        """Every `config.json` of this model type may be supported."""

    def pick_files(self, names: Collection[str]) -> list[str]:
        folder = next((folder for folder in FOLDERS if f"{folder}/config.json" in names), FOLDERS[0])
        vocoder = ((f"{folder}/config.json",), tuple(f"{folder}/{name}" for name in MODEL_NAMES))
        return pick_files(names, (*self.needed_files, *vocoder), ("voices/*.npy", "voices/*.safetensors"))
