"""The cascade's entry in the registry of families; `families/base.py: Family` describes the methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from s1_mini.families.cascade.config import SETS
from s1_mini.families.cascade.settings import STAGES, CascadeSettings
from s1_mini.families.registry import deferred
from s1_mini.weights.directory import MODEL_NAMES, pick_files

OPTIONAL = (
    *("generation_config.json", "speaker_embeddings_path.json"),
    *("speaker_embeddings/*.npy", "voices/*.safetensors"),
)


class Cascade:
    """The family of Bark, and of other models with the same stages."""

    title = "Bark"
    settings = CascadeSettings
    stage_names = STAGES
    in_float16 = True
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

    describe = deferred("s1_mini.families.cascade.voice", "describe")
    sizes = deferred("s1_mini.families.cascade.costs", "measure_sizes")
    open = deferred("s1_mini.families.cascade.loaded", "LoadedCascade")
    files = deferred("s1_mini.families.cascade.weights", "compact_files")
    verify = deferred("s1_mini.families.cascade.verify", "verify_cascade")
    write_random = deferred("s1_mini.families.cascade.random", "write_random")

    def check_config(self, values: Mapping[str, Any]) -> None:
        """Every `config.json` of this model type may be supported."""

    def pick_files(self, names: Collection[str]) -> list[str]:
        parts = next((tuple(files.values()) for files in SETS if files["semantic"] in names), ())
        weights = (MODEL_NAMES,) if any(name in names for name in MODEL_NAMES) else tuple((file,) for file in parts)
        return pick_files(names, (self.needed_files[0], *weights, self.needed_files[-1]), OPTIONAL)
