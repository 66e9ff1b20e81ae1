"""The cascade's entry in the registry of families. Modules that need torch or numpy are imported at first use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.families.base import Description
from s1_mini.families.cascade.config import SETS, make_config, read_cascade_config
from s1_mini.families.cascade.settings import STAGES, CascadeSettings
from s1_mini.weights.directory import MODEL_NAMES, pick_files

if TYPE_CHECKING:
    import torch

    from s1_mini.capacity.sizes import Formats, Sizes
    from s1_mini.families.base import Check, Conversion, Form, Placement
    from s1_mini.families.cascade.loaded import LoadedCascade
    from s1_mini.weights.write import ArchiveEntry

OPTIONAL = (
    *("generation_config.json", "speaker_embeddings_path.json"),
    *("speaker_embeddings/*.npy", "voices/*.safetensors"),
)


class Cascade:
    """The family of Bark, and of other models with the same stages."""

    title = "Bark"
    settings = CascadeSettings
    stage_names = STAGES
    needed_files = (
        ("config.json",),
        (
            *("model.safetensors", "model.safetensors.index.json", "semantic.safetensors", "text.pt", "text_2.pt"),
            *("coarse.safetensors", "coarse.pt", "coarse_2.pt"),  # so that the error can name a missing semantic model
            "pytorch_model.bin",
        ),
        ("tokenizer.json", "vocab.txt"),
    )
    random_sizes: Mapping[str, str] = {
        "tiny": "53 MB: the published vocabularies, 64 channels",
        "small": "like bark-small: 12 layers of 768 channels",
        "large": "like bark: 24 layers of 1024 channels",
    }

    def pick_files(self, names: Collection[str]) -> list[str]:
        parts = next((tuple(files.values()) for files in SETS if files["semantic"] in names), ())
        weights = (MODEL_NAMES,) if any(name in names for name in MODEL_NAMES) else tuple((file,) for file in parts)
        return pick_files(names, (self.needed_files[0], *weights, self.needed_files[-1]), OPTIONAL)

    def describe(self, directory: Path) -> Description:
        from s1_mini.families.cascade.voice import voice_format  # imports numpy

        config = read_cascade_config(directory)
        return Description(config.codec.sampling_rate, voice_format(config), ("temperature", "top_p", "top_k"))

    def sizes(self, directory: Path | None, formats: Formats, prefix_cache_bytes: int) -> Sizes:
        from s1_mini.families.cascade.costs import measure_sizes
        from s1_mini.families.cascade.random import RECIPES
        from s1_mini.families.cascade.weights import read_config

        config = read_config(directory) if directory else make_config(RECIPES["small"].config)
        return measure_sizes(config, formats, prefix_cache_bytes)

    def open(self, directory: Path, placement: Placement, settings: CascadeSettings) -> LoadedCascade:
        from s1_mini.families.cascade.loaded import LoadedCascade

        return LoadedCascade(directory, placement, settings)

    def files(self, directory: Path, conversion: Conversion) -> list[ArchiveEntry]:
        from s1_mini.families.cascade.weights import compact_files

        return compact_files(directory, conversion)

    def verify(
        self, directory: Path, oracle: Mapping[str, Any], device: torch.device, tolerance: float
    ) -> Iterator[Check] | None:
        from s1_mini.families.cascade.verify import verify_cascade

        return verify_cascade(directory, oracle, device, tolerance)

    def write_random(self, directory: Path, *, size: str, form: Form, seed: int) -> None:
        from s1_mini.families.cascade.random import RECIPES, write_random_checkpoint

        write_random_checkpoint(directory, RECIPES[size], form=form, seed=seed)
