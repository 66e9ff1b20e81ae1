"""Write a cascade with random weights, in transformers' form or in the compact form. It generates noise.

Vocabularies, offsets and rates are as published. Weights are so large that rounding does not change which token is
sampled.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.weights import TINY as TINY_CODEC
from s1_mini.codecs.encodec.weights import random_tensors, translate
from s1_mini.families.base import Form
from s1_mini.families.cascade.config import COMPACT, PARTS, VOCABULARIES, CascadeConfig, Numbers, make_config
from s1_mini.families.cascade.network import CausalGPT, FineGPT
from s1_mini.families.cascade.voice import INDEX, KEYS
from s1_mini.families.cascade.weights import PREFIXES
from s1_mini.voices.format import for_file
from s1_mini.weights import weight_norm
from s1_mini.weights.fit import skeleton
from s1_mini.weights.write import new_directory, write_json, write_tensors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = string.ascii_letters + string.digits + "äöüßéèçñ♪"
LOGITS = 4.0  # standard deviation of logits
ATTENTION = 3.0  # gain of queries and keys; it makes attention sharp, so that the audio depends on each word
END = 1.2  # factor of the end token's logit, so that speech lasts a few seconds
VOICES = {"one": 240, "two": 420}  # number of semantic tokens of each random voice


class Recipe(NamedTuple):
    """The config.json of a random checkpoint, and the dtype of its models."""

    config: dict[str, Any]
    dtype: torch.dtype


def recipe(layers: int, heads: int, width: int, codec: EncodecConfig, dtype: torch.dtype = torch.float32) -> Recipe:
    """Return the recipe of a checkpoint whose three models have the same size."""
    sizes = {"num_layers": layers, "num_heads": heads, "hidden_size": width, "block_size": 1024, "bias": False}
    config: dict[str, Any] = {"model_type": "bark", "architectures": ["BarkModel"]}
    for stage, (inputs, outputs) in VOCABULARIES.items():
        kinds = {"model_type": PARTS[stage].removesuffix("_config")}
        config[PARTS[stage]] = sizes | kinds | {"input_vocab_size": inputs, "output_vocab_size": outputs}
    config[PARTS["fine"]] |= {"n_codes_total": 8, "n_codes_given": 1}
    config["codec_config"] = {"model_type": "encodec"} | asdict(codec)
    return Recipe(config, dtype)


RECIPES = {
    "tiny": recipe(2, 2, 64, TINY_CODEC),
    "small": recipe(12, 12, 768, EncodecConfig(), torch.bfloat16),
    "large": recipe(24, 16, 1024, EncodecConfig(), torch.bfloat16),
}


def _published_numbers() -> dict[str, Any]:
    """Return a generation_config.json with the published numbers."""
    values: dict[str, Any] = {"model_type": "bark", "sample_rate": EncodecConfig().sampling_rate}
    for number in fields(Numbers):
        group, _, key = number.metadata["key"].rpartition(".")
        if number.default:  # transformers writes 0 in other ways, such as null
            (values.setdefault(group, {}) if group else values)[key] = number.default
    return values


GENERATION = _published_numbers()


def write_random(directory: Path, *, size: str, form: Form, seed: int) -> None:
    write_random_checkpoint(directory, RECIPES[size], form=form, seed=seed)


def write_random_checkpoint(directory: Path, recipe: Recipe, *, form: Form = "compact", seed: int = 0) -> None:
    """Write a new checkpoint directory, with two random voices.

    Raises `CheckpointFileError` if `directory` exists and is not empty, or cannot be written.
    """
    config = make_config(recipe.config, GENERATION)
    with new_directory(directory) as target:
        write_json(target / "config.json", recipe.config)
        write_json(target / "generation_config.json", GENERATION)
        (target / "vocab.txt").write_bytes("\n".join(_vocabulary()).encode() + b"\n")
        models = _random_models(config, seed, recipe.dtype)
        if form == "compact":
            codec = translate(random_tensors(config.codec, seed + 1, norms=None))
            models["codec"] = {PREFIXES["codec"] + name: value for name, value in codec.items()}
            for stage, tensors in models.items():
                write_tensors(target / COMPACT[stage], tensors)
        else:
            codec = random_tensors(config.codec, seed + 1, norms=weight_norm.OLD, prefix=PREFIXES["codec"])
            flat = {name: tensor for tensors in models.values() for name, tensor in tensors.items()}
            torch.save(flat | dict(_masks(config)) | codec, target / "pytorch_model.bin")
        folder = target / ("voices" if form == "compact" else "speaker_embeddings")
        folder.mkdir()
        for at, (name, length) in enumerate(VOICES.items()):
            voice = random_voice(config, length, seed + at)
            if form == "compact":
                write_tensors(folder / f"{name}.safetensors", for_file(voice))
            else:
                for key, value in voice.items():
                    np.save(folder / f"{name}_{key}.npy", value.numpy(), allow_pickle=False)
        if form == "published":
            places = {name: {key: f"{folder.name}/{name}_{key}.npy" for key in KEYS} for name in VOICES}
            write_json(target / INDEX, places)


def _vocabulary() -> list[str]:
    """Return the words of a WordPiece vocabulary: letters at the start of and within words, punctuation, four words."""
    words = ("the", "##ing", "hello", "laughs")
    return [*SPECIAL, *string.punctuation, *LETTERS, *(f"##{letter}" for letter in LETTERS), *words]


def random_voice(config: CascadeConfig, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Return a random voice of `length` semantic tokens."""
    generator = np.random.default_rng(seed)
    frames = int(length * config.numbers.ratio / 2)
    fine = generator.integers(0, config.numbers.codebook_size, (config.numbers.num_books, frames))
    semantic = generator.integers(0, config.numbers.semantic_size, length)
    parts = {"semantic_prompt": semantic, "coarse_prompt": fine[:2].copy(), "fine_prompt": fine}
    return {name: torch.from_numpy(part) for name, part in parts.items()}


def _random_models(config: CascadeConfig, seed: int, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    """Return random tensors of each model, with transformers' names."""
    generator = torch.Generator().manual_seed(seed)
    numbers = config.numbers
    # The fine heads are tied to the embeddings of their codebooks, and therefore not stored.
    fine = replace(numbers, codebook_size=config.fine.output_size)
    networks: dict[str, CausalGPT | FineGPT] = {
        "semantic": skeleton(lambda: CausalGPT(config.semantic, config.semantic.output_size)),
        "coarse": skeleton(lambda: CausalGPT(config.coarse, config.coarse.output_size)),
        "fine": skeleton(lambda: FineGPT(config.fine, fine)),
    }
    models: dict[str, dict[str, Tensor]] = {}
    for stage, network in networks.items():
        named = {PREFIXES[stage] + name: tensor for name, tensor in _fill(network, generator, dtype)}
        models[stage] = {name: tensor for name, tensor in named.items() if ".lm_heads." not in name}
    models["semantic"]["semantic.lm_head.weight"][numbers.semantic_size] *= END
    return models


def _fill(module: CausalGPT | FineGPT, generator: torch.Generator, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    width = module.config.width
    for name, parameter in module.named_parameters():
        tensor = torch.empty(parameter.shape, dtype=dtype)
        if "layernorm" in name:
            tensor.normal_(0.0 if name.endswith("bias") else 1.0, 0.1, generator=generator)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.1, generator=generator)
        elif "lm_head" in name or "input_embeds_layers" in name:
            tensor.normal_(0.0, LOGITS * width**-0.5, generator=generator)
        elif "embeds" in name:
            tensor.normal_(0.0, 0.7, generator=generator)
        else:
            gain = ATTENTION if "att_proj" in name else 1.5
            tensor.normal_(0.0, gain * parameter.shape[1] ** -0.5, generator=generator)
        yield name, tensor


def _masks(config: CascadeConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the mask buffers that a published file contains."""
    for stage, gpt in (("semantic", config.semantic), ("coarse", config.coarse)):
        size = gpt.block_size
        for layer in range(gpt.num_layers):
            mask = torch.ones(size, size, dtype=torch.bool).tril_().view(1, 1, size, size)
            yield f"{PREFIXES[stage]}layers.{layer}.attn.bias", mask
