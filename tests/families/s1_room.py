"""Random S1 models for every switch in `config.json`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from s1_mini.families.s1.config import Ras, S1Config
from s1_mini.families.s1.model import S1Model
from s1_mini.families.s1.random import RECIPES, Recipe, random_model, write_vocabulary
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.families.s1.weights import build_network


def build(
    directory: Path, switches: dict[str, Any], *, heads: str = "restricted", ras: Ras | None = None, **settings: Any
) -> S1Model:
    """A model that needs only its vocabulary file, which is written into the directory."""
    recipe = Recipe(RECIPES["tiny"].model | switches, num_semantic=64)
    write_vocabulary(directory, recipe)
    tokenizer = S1Tokenizer.from_directory(directory)
    network = build_network(
        replace(S1Config.from_json(recipe.model), ras=ras),
        tokenizer,
        random_model(recipe),
        heads=heads,
        residual_codes=None,
        dtype=torch.float32,
        device=torch.device("cpu"),
        source="test",
    )
    return S1Model(network, tokenizer, heads=heads, **settings)
