"""Make a cascade with random weights, in transformers' form or the compact one. It speaks noise.

Vocabularies, offsets and rates are the published ones, and weights so wide that what is chosen hangs on no last bit.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.weights import TINY as TINY_CODEC
from s1_mini.codecs.encodec.weights import random_tensors
from s1_mini.families.base import Form
from s1_mini.families.cascade.config import COMPACT, CascadeConfig, make_config
from s1_mini.families.cascade.network import CausalGPT, FineGPT
from s1_mini.families.cascade.voice import INDEX, KEYS
from s1_mini.families.cascade.weights import PREFIXES
from s1_mini.voices.format import for_file
from s1_mini.weights.fit import skeleton
from s1_mini.weights.write import new_directory, write_json, write_tensors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = string.ascii_letters + string.digits + "äöüßéèçñ♪"
LOGITS = 4.0  # standard deviation of what a head gives
ATTENTION = 3.0  # of queries and keys: so much that it looks at little, and what is said hangs on each word
END = 1.2  # times as much for the semantic end, so that speech lasts some seconds
VOICES = {"one": 240, "two": 420}  # random voices, by name: their semantic tokens

GENERATION = {
    "semantic_config": {
        "eos_token_id": 10_000,
        "max_input_semantic_length": 256,
        "max_new_tokens": 768,
        "semantic_infer_token": 129_599,
        "semantic_pad_token": 10_000,
        "semantic_rate_hz": 49.9,
        "semantic_vocab_size": 10_000,
        "text_encoding_offset": 10_048,
        "text_pad_token": 129_595,
    },
    "coarse_acoustics_config": {
        "coarse_infer_token": 12_050,
        "coarse_rate_hz": 75,
        "coarse_semantic_pad_token": 12_048,
        "max_coarse_history": 630,
        "max_coarse_input_length": 256,
        "n_coarse_codebooks": 2,
        "sliding_window_len": 60,
    },
    "fine_acoustics_config": {
        "max_fine_history_length": 512,
        "max_fine_input_length": 1024,
        "n_fine_codebooks": 8,
        "temperature": 1.0,
    },
    "codebook_size": 1024,
    "sample_rate": 24_000,
    "model_type": "bark",
}


@dataclass(frozen=True)
class Recipe:
    """What a random checkpoint is made from: its config.json, and the number format of its models."""

    config: dict[str, Any]
    codec: EncodecConfig
    dtype: torch.dtype = torch.float32


def recipe(layers: int, heads: int, width: int, codec: EncodecConfig, dtype: torch.dtype = torch.float32) -> Recipe:
    """Make a recipe of a checkpoint whose three models have the same size."""
    sizes = {"num_layers": layers, "num_heads": heads, "hidden_size": width, "block_size": 1024, "bias": False}
    vocabularies = {"semantic": (129_600, 10_048), "coarse_acoustics": (12_096, 12_096), "fine_acoustics": (1056, 1056)}
    config: dict[str, Any] = {"model_type": "bark", "architectures": ["BarkModel"]}
    for name, (inputs, outputs) in vocabularies.items():
        kinds = {"model_type": name, "input_vocab_size": inputs, "output_vocab_size": outputs}
        config[f"{name}_config"] = sizes | kinds
    config["fine_acoustics_config"] |= {"n_codes_total": 8, "n_codes_given": 1}
    config["codec_config"] = {"model_type": "encodec"} | asdict(codec)
    return Recipe(config, codec, dtype)


RECIPES = {
    "tiny": recipe(2, 2, 64, TINY_CODEC),
    "small": recipe(12, 12, 768, EncodecConfig(), torch.bfloat16),
    "large": recipe(24, 16, 1024, EncodecConfig(), torch.bfloat16),
}


def write_random_checkpoint(directory: Path, recipe: Recipe, *, form: Form = "compact", seed: int = 0) -> None:
    """Write a checkpoint directory that did not exist, with two random voices.

    Raises `CheckpointFileError` if `directory` exists or cannot be written.
    """
    config = make_config(recipe.config, GENERATION)
    with new_directory(directory) as target:
        write_json(target / "config.json", recipe.config)
        write_json(target / "generation_config.json", GENERATION)
        (target / "vocab.txt").write_bytes("\n".join(vocabulary()).encode() + b"\n")
        models = random_models(config, seed, recipe.dtype)
        if form == "compact":
            codec = random_tensors(config.codec, seed + 1, spelling="folded", prefix=PREFIXES["codec"])
            models["codec"] = {name: value for name, value in codec.items() if not name.endswith(_UNUSED)}
            for stage, tensors in models.items():
                write_tensors(target / COMPACT[stage], tensors)
        else:
            codec = random_tensors(config.codec, seed + 1, spelling="weight_g", prefix=PREFIXES["codec"])
            flat = {name: tensor for tensors in models.values() for name, tensor in tensors.items()}
            torch.save(flat | dict(_masks(config)) | codec, target / "pytorch_model.bin")
        for at, (name, length) in enumerate(VOICES.items()):
            _write_voice(target, name, random_voice(config, length, seed + at), form)
        if form == "published":
            places = {name: {key: f"speaker_embeddings/{name}_{key}.npy" for key in KEYS} for name in VOICES}
            write_json(target / INDEX, places)


_UNUSED = (".inited", ".cluster_size", ".embed_avg")


def vocabulary() -> list[str]:
    """Return words of a WordPiece vocabulary: letters, alone and within words, and signs."""
    words = [*SPECIAL, *string.punctuation, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    return [*words, "the", "##ing", "hello", "laughs", "##s"][: len(words) + 4]


def random_voice(config: CascadeConfig, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Make a voice of `length` semantic tokens that says nothing."""
    draws = np.random.default_rng(seed)
    frames = int(length * config.numbers.ratio / 2)
    fine = draws.integers(0, config.numbers.codebook_size, (config.numbers.num_books, frames))
    semantic = draws.integers(0, config.numbers.semantic_size, length)
    parts = {"semantic_prompt": semantic, "coarse_prompt": fine[:2].copy(), "fine_prompt": fine}
    return {name: torch.from_numpy(part) for name, part in parts.items()}


def _write_voice(target: Path, name: str, voice: dict[str, Tensor], form: Form) -> None:
    folder = target / ("voices" if form == "compact" else "speaker_embeddings")
    folder.mkdir(exist_ok=True)
    if form == "compact":
        write_tensors(folder / f"{name}.safetensors", for_file(voice))
        return
    for key, value in voice.items():
        np.save(folder / f"{name}_{key}.npy", value.numpy(), allow_pickle=False)


def random_models(
    config: CascadeConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, dict[str, Tensor]]:
    """Return random tensors of each model under transformers' names."""
    draws = torch.Generator().manual_seed(seed)
    numbers = config.numbers
    # The fine heads are tied to the embeddings of their books, and so are not stored.
    fine = replace(numbers, codebook_size=config.fine.output_size)
    with skeleton():
        networks: dict[str, CausalGPT | FineGPT] = {
            "semantic": CausalGPT(config.semantic, config.semantic.output_size),
            "coarse": CausalGPT(config.coarse, config.coarse.output_size),
            "fine": FineGPT(config.fine, fine),
        }
    models: dict[str, dict[str, Tensor]] = {}
    for stage, network in networks.items():
        named = {PREFIXES[stage] + name: tensor for name, tensor in _fill(network, draws, dtype)}
        models[stage] = {name: tensor for name, tensor in named.items() if ".lm_heads." not in name}
    models["semantic"]["semantic.lm_head.weight"][numbers.semantic_size] *= END
    return models


def _fill(module: CausalGPT | FineGPT, draws: torch.Generator, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    width = module.config.width
    for name, parameter in module.named_parameters():
        tensor = torch.empty(parameter.shape, dtype=dtype)
        if "layernorm" in name:
            tensor.normal_(0.0 if name.endswith("bias") else 1.0, 0.1, generator=draws)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.1, generator=draws)
        elif "lm_head" in name or "input_embeds_layers" in name:
            tensor.normal_(0.0, LOGITS * width**-0.5, generator=draws)
        elif "embeds" in name:
            tensor.normal_(0.0, 0.7, generator=draws)
        else:
            gain = ATTENTION if "att_proj" in name else 1.5
            tensor.normal_(0.0, gain * parameter.shape[1] ** -0.5, generator=draws)
        yield name, tensor


def _masks(config: CascadeConfig) -> Iterator[tuple[str, Tensor]]:
    """The buffers that a published file carries along."""
    for stage, gpt in (("semantic", config.semantic), ("coarse", config.coarse)):
        size = gpt.block_size
        for layer in range(gpt.num_layers):
            mask = torch.ones(size, size, dtype=torch.bool).tril_().view(1, 1, size, size)
            yield f"{PREFIXES[stage]}layers.{layer}.attn.bias", mask
