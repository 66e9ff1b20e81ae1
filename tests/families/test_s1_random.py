"""Random checkpoints have exactly the published names and shapes, and stay small."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import translate
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.random import RECIPES, published_codec, random_codec, random_model

KEY_TABLE = Path(__file__).parents[1] / "assets" / "s1_mini_keys.txt"


def published_table() -> dict[str, dict[tuple[str, str], int]]:
    """Count, for each file, how often a name pattern (numbers as N) occurs with a shape."""
    tables: dict[str, dict[tuple[str, str], int]] = {}
    for line in KEY_TABLE.read_text().splitlines():
        if line.startswith("## "):
            current = tables.setdefault(line.split()[1].rstrip(":"), {})
        elif line:
            pattern, shape, count = line.rsplit("\t", 2)
            current[pattern, shape] = int(count)
    return tables


def table_of(tensors: dict[str, torch.Tensor]) -> dict[tuple[str, str], int]:
    table: dict[tuple[str, str], int] = {}
    for name, tensor in tensors.items():
        key = re.sub(r"\.\d+(?=\.)", ".N", name), str(tuple(tensor.shape))
        table[key] = table.get(key, 0) + 1
    return table


def test_a_full_size_checkpoint_has_the_published_names_and_shapes() -> None:
    """287 tensors of model.pth and 541 of codec.pth, on the meta device."""
    published = published_table()

    config = S1Config.from_json(RECIPES["full"].model)
    with torch.device("meta"):
        network = S1Network(config, semantic_rows=config.vocab_size, residual_rows=config.codebook_size)
        codec = Dac(DacConfig())
    codec_tensors = published_codec(codec, dict(codec.named_parameters()))

    assert table_of(dict(network.named_parameters())) == published["model.pth"]
    assert table_of(codec_tensors) == published["codec.pth"]


def test_a_tiny_checkpoint_takes_less_than_a_megabyte() -> None:
    tensors = [*random_model(RECIPES["tiny"]).values(), *random_codec(RECIPES["tiny"]).values()]

    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) < 1_000_000


def test_the_published_form_folds_back_into_the_compact_one() -> None:
    compact = random_codec(RECIPES["tiny"])

    folded = translate(random_codec(RECIPES["tiny"], form="published"))

    assert folded.keys() == compact.keys()
    assert all(torch.allclose(folded[name], compact[name], atol=1e-6) for name in compact)


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = (random_model(RECIPES["tiny"], seed)["norm.weight"] for seed in (1, 1, 2))

    assert torch.equal(first, second)
    assert not torch.equal(first, other)
