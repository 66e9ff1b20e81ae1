"""S1 as the registry knows it: everything that needs torch is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.families.s1.settings import SMALL_FILES, S1Settings
from s1_mini.weights.directory import find_tensors, names_of, pick_files

if TYPE_CHECKING:
    import torch

    from s1_mini.capacity.sizes import Formats, Sizes
    from s1_mini.families.base import Check, Conversion, Description, Form, Placement
    from s1_mini.families.s1.loaded import LoadedS1
    from s1_mini.weights.write import Member

STAGES = ("language_model", "codec")


class S1:
    """Fish-Speech / OpenAudio S1-mini and its siblings."""

    title = "S1-mini"
    settings = S1Settings
    stage_names = STAGES
    needed_files = (*((name,) for name in SMALL_FILES), names_of("model"), names_of("codec"))

    random_sizes: Mapping[str, str] = {"tiny": "under a megabyte", "full": "S1-mini's own"}

    def pick_files(self, names: Collection[str]) -> list[str]:
        return pick_files(names, self.needed_files, ("codec_config.json", "voices/*.safetensors"))

    def describe(self, directory: Path) -> Description:
        from s1_mini.codecs.dac.config import read_dac_config
        from s1_mini.families.base import Description
        from s1_mini.families.s1.config import voice_format
        from s1_mini.voices.format import fingerprint

        codec = read_dac_config(directory)
        encoder = fingerprint([find_tensors(directory, "codec")])
        return Description(codec.sample_rate, voice_format(codec, encoder))

    def sizes(self, directory: Path | None, formats: Formats, prefix_cache_bytes: int) -> Sizes:
        from s1_mini.codecs.dac.config import DacConfig
        from s1_mini.families.s1.config import S1Config
        from s1_mini.families.s1.costs import measure_sizes
        from s1_mini.families.s1.loaded import read_configs
        from s1_mini.families.s1.random import FULL_MODEL

        configs = read_configs(directory) if directory else (S1Config.from_json(FULL_MODEL), DacConfig())
        return measure_sizes(*configs, formats, prefix_cache_bytes)

    def open(self, directory: Path, placement: Placement, settings: S1Settings) -> LoadedS1:
        from s1_mini.families.s1.loaded import open_s1

        return open_s1(directory, placement, settings)

    def files(self, directory: Path, conversion: Conversion) -> list[Member]:
        from s1_mini.families.s1.convert import compact_files

        return compact_files(directory, conversion)

    def verify(
        self, directory: Path, oracle: Mapping[str, Any], device: torch.device, tolerance: float
    ) -> Iterator[Check] | None:
        from s1_mini.families.s1.verify import verify_s1

        return verify_s1(directory, oracle, device, tolerance)

    def write_random(self, directory: Path, *, size: str, form: Form, seed: int) -> None:
        import torch

        from s1_mini.families.s1.random import RECIPES, write_random_checkpoint

        dtype = torch.bfloat16 if size == "full" else torch.float32
        write_random_checkpoint(directory, RECIPES[size], form=form, seed=seed, dtype=dtype)
