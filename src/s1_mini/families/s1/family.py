"""S1's entry in the registry of families; `families/base.py: Family` describes the methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from s1_mini.families.registry import deferred
from s1_mini.families.s1.settings import AUDIO8_FILES, AUDIO8_OPTIONAL, SMALL_FILES, STAGES, S1Settings
from s1_mini.weights.directory import names_of, pick_files


class S1:
    """The family of OpenAudio S1-mini, and of related Fish-Speech models."""

    title = "S1-mini"
    settings = S1Settings
    stage_names = STAGES
    in_float16 = True
    needed_files = (*((name,) for name in SMALL_FILES), names_of("model"), names_of("codec"))
    random_sizes: Mapping[str, str] = {"tiny": "under a megabyte", "full": "the size of S1-mini"}

    check_config = deferred("s1_mini.families.s1.config", "completed")
    describe = deferred("s1_mini.families.s1.config", "describe")
    sizes = deferred("s1_mini.families.s1.costs", "measure_sizes")
    open = deferred("s1_mini.families.s1.loaded", "open_s1")
    files = deferred("s1_mini.families.s1.weights", "compact_files")
    verify = deferred("s1_mini.families.s1.verify", "verify_s1")
    write_random = deferred("s1_mini.families.s1.random", "write_random")

    def pick_files(self, names: Collection[str]) -> list[str]:
        return pick_files(names, self.needed_files, ("codec_config.json", "voices/*.safetensors"))


class Audio8(S1):
    """Audio8-TTS, which has S1's architecture with the prompts and the sampling of `config.py: Dialect`."""

    title = "Audio8-TTS"
    in_float16 = False  # it was trained in bfloat16
    needed_files = (*((name,) for name in AUDIO8_FILES), names_of("model"), names_of("codec"))
    random_sizes: Mapping[str, str] = {"tiny": "about a megabyte", "0.6b": "the size of the 0.6B preview"}

    sizes = deferred("s1_mini.families.s1.costs", "measure_audio8")
    write_random = deferred("s1_mini.families.s1.random", "write_audio8")

    def pick_files(self, names: Collection[str]) -> list[str]:
        optional = ("codec_config.json", AUDIO8_OPTIONAL, "voices/*.safetensors")
        return pick_files(names, self.needed_files, optional)
