"""Write a checkpoint with random weights, in the published or the compact form. It generates noise.

Random weights are enough to measure speed and memory, and the published weights are gated. Shapes are read from the
modules, so that a random checkpoint always fits the loader.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s1_mini.codecs.causal.layers import WindowTransformer
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.families.base import Form
from s1_mini.families.codec_lm.vocabulary import byte_letters
from s1_mini.families.s1.config import AUDIO8_MODEL, AUDIO8_SAMPLING, S1Config, codec_sizes, read_dialect
from s1_mini.families.s1.settings import AUDIO8_OPTIONAL
from s1_mini.families.s1.tokenizer import QWEN2_STEPS
from s1_mini.families.s1.weights import full_network
from s1_mini.layers.transformer import rope_table
from s1_mini.weights import weight_norm
from s1_mini.weights.fit import skeleton
from s1_mini.weights.write import new_directory, write_json, write_tensors

CONTROL_TOKENS = (
    *("begin_of_text", "end_of_text", "pad", "im_start", "im_end"),
    *("phoneme_start", "phoneme_end", "tool_call_start", "tool_call_end"),
    *("text", "voice", "interleave", "audio_start", "audio_end", "audio"),
)
# Distances of Audio8's control tokens from the last text token.
AUDIO8_TOKENS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<think>": 24, "<|voice|>": 30}
AUDIO8_FIRST_CODE = 35


@dataclass(frozen=True)
class Recipe:
    """The config files of a random checkpoint, and the sizes of its vocabulary."""

    model: dict[str, Any]
    codec: dict[str, Any] = field(default_factory=dict)  # empty: the published codec
    num_text_tokens: int = 256
    num_semantic: int = 4096


FULL_MODEL = {
    "model_type": "dual_ar",
    "vocab_size": 155_776,
    "dim": 1024,
    "n_layer": 28,
    "n_head": 16,
    "n_local_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "n_fast_layer": 4,
    "fast_dim": 1024,
    "fast_n_head": 16,
    "fast_n_local_heads": 8,
    "fast_head_dim": 64,
    "fast_intermediate_size": 3072,
    "attention_qk_norm": True,
    "fast_attention_qk_norm": False,
    "codebook_size": 4096,
    "num_codebooks": 10,
    "rope_base": 1_000_000,
    "norm_eps": 1e-6,
    "max_seq_len": 8192,
    "tie_word_embeddings": False,
    "scale_codebook_embeddings": True,
}
TINY_MODEL = FULL_MODEL | {
    "vocab_size": 256 + len(CONTROL_TOKENS) + 64 + 1,  # the last id is unused; FULL_MODEL, too, has unused ids
    "dim": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_local_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "n_fast_layer": 2,
    "fast_dim": 32,
    "fast_n_head": 4,
    "fast_n_local_heads": 2,
    "fast_head_dim": 8,
    "fast_intermediate_size": 64,
    "codebook_size": 64,
    "max_seq_len": 2560,
}
AUDIO8_TINY = AUDIO8_MODEL | {
    "vocab_size": 260 + 35 + 64 + 2,
    "dim": 56,
    "n_layer": 2,
    "n_head": 7,
    "n_local_heads": 1,
    "head_dim": 8,
    "intermediate_size": 64,
    "n_fast_layer": 2,
    "fast_dim": 56,
    "fast_n_head": 7,
    "fast_n_local_heads": 1,
    "fast_head_dim": 8,
    "fast_intermediate_size": 64,
    "codebook_size": 64,
    "eos_token_id": 260 + 2,
    "semantic_begin_id": 260 + 35,
    "semantic_end_id": 260 + 35 + 63,
    "codec_post_n_layer": 1,
    "codec_post_n_head": 2,
    "codec_post_n_local_heads": 1,
    "codec_post_intermediate_size": 48,
}
TINY_CODEC = {
    "encoder_dim": 2,
    "input_dim": 32,
    "encoder_transformer_layers": [0, 0, 0, 1],
    "enc_block_size": 4096,
    "enc_head_dim": 32,
    "enc_window": 24,
    "decoder_dim": 16,
    "codebook_size": 32,
    "semantic_codebook_size": 64,
    "q_block_size": 1024,
    "q_n_layer": 2,
    "q_n_head": 2,
    "q_dim": 32,
    "q_inter": 64,
    "q_window": 16,
}
RECIPES: dict[str, Recipe] = {
    "tiny": Recipe(TINY_MODEL, TINY_CODEC, num_semantic=64),
    "full": Recipe(FULL_MODEL, num_text_tokens=151_643),
    "audio8-tiny": Recipe(AUDIO8_TINY, TINY_CODEC, num_text_tokens=260, num_semantic=64),
    "audio8-0.6b": Recipe(AUDIO8_MODEL, num_text_tokens=151_643),
}

# Weights of the codec whose published form has weight norm; its tensors have different names in the two groups.
_CONV_NORM = re.compile(r"((?:encoder|decoder)\..*\.conv)\.weight")
_PROJECTION_NORM = re.compile(r"(.*\.(?:in|out)_proj)\.weight")


def write_random(directory: Path, *, size: str, form: Form, seed: int) -> None:
    dtype = torch.bfloat16 if size == "full" else torch.float32
    write_random_checkpoint(directory, RECIPES[size], form=form, seed=seed, dtype=dtype)


def write_audio8(directory: Path, *, size: str, form: Form, seed: int) -> None:
    write_random_checkpoint(directory, RECIPES[f"audio8-{size}"], form=form, seed=seed, dtype=torch.bfloat16)


def write_random_checkpoint(
    directory: Path, recipe: Recipe, *, form: Form = "compact", seed: int = 0, dtype: torch.dtype = torch.float32
) -> None:
    """Write a new checkpoint directory. `dtype` is that of the model; the codec is always fp32.

    Raises `CheckpointFileError` if `directory` exists and is not empty, or cannot be written.
    """
    suffix, is_chat = {"published": ".pth", "compact": ".safetensors"}[form], read_dialect(recipe.model).chat
    with new_directory(directory) as target:
        write_json(target / "config.json", recipe.model)
        if recipe.codec:
            write_json(target / "codec_config.json", recipe.codec)
        (write_tokenizer if is_chat else write_vocabulary)(target, recipe)
        if is_chat:
            write_json(target / AUDIO8_OPTIONAL, asdict(AUDIO8_SAMPLING))
        write_tensors(target / f"model{'.safetensors' if is_chat else suffix}", random_model(recipe, seed, dtype))
        write_tensors(target / f"codec{suffix}", random_codec(recipe, seed + 1, form=form))


def random_model(recipe: Recipe, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return random tensors for all names of the published `model.pth`."""
    config = S1Config.from_json(recipe.model)
    tensors = dict(_fill(full_network(config), torch.Generator().manual_seed(seed), dtype))
    if config.tie_word_embeddings:
        del tensors["output.weight"]
        tensors["embeddings.weight"] *= config.backbone.dim**-0.5  # so that logits are near one
    if config.end is not None:
        tensors["embeddings.weight"][config.end] = 0  # the end is never among the likeliest tokens
    return tensors


def random_codec(recipe: Recipe, seed: int = 0, *, form: Form = "compact") -> dict[str, Tensor]:
    """Return random tensors with the names of the compact form, or of `codec.pth` with its weight norm and buffers."""
    config = DacConfig.from_json(codec_sizes(recipe.model) | recipe.codec)
    codec = skeleton(lambda: Dac(config))
    tensors = dict(_fill(codec, torch.Generator().manual_seed(seed), torch.float32))
    if form == "compact":
        return tensors
    return published_codec(codec, tensors, buffers=not read_dialect(recipe.model).chat)


def published_codec(codec: Dac, tensors: Mapping[str, Tensor], *, buffers: bool = True) -> dict[str, Tensor]:
    """Return a codec's tensors in the published form, with weight norm and, as in S1-mini's file, with buffers."""
    published: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        conv, projection = _CONV_NORM.fullmatch(name), _PROJECTION_NORM.fullmatch(name)
        if conv:
            published |= weight_norm.unfolded(conv[1], tensor, weight_norm.NEW)
        elif projection:
            published |= weight_norm.unfolded(projection[1], tensor, weight_norm.OLD)
        else:
            published[name] = tensor
    return published | (dict(_buffers(codec)) if buffers else {})


def write_vocabulary(directory: Path, recipe: Recipe) -> None:
    """Write a vocabulary of single bytes and invented longer tokens, followed by the control tokens."""
    count = recipe.num_text_tokens
    tokens = [bytes([i]) for i in range(256)] + [b"\0" + i.to_bytes(3, "big") for i in range(256, count)]
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (directory / "tokenizer.tiktoken").write_bytes("".join(lines).encode("ascii"))
    names = [f"<|{name}|>" for name in CONTROL_TOKENS] + [f"<|semantic:{i}|>" for i in range(recipe.num_semantic)]
    special = {name: count + index for index, name in enumerate(names)}
    write_json(directory / "special_tokens.json", special)


def write_tokenizer(directory: Path, recipe: Recipe) -> None:
    """Write Audio8's `tokenizer.json` with a vocabulary of single bytes, and of invented tokens that begin with 0."""
    letters, made, merges = list(byte_letters()), [chr(256)], []
    pairs = ((parent, letter) for parent in made for letter in letters)  # `made` grows
    for parent, letter in islice(pairs, recipe.num_text_tokens - len(letters)):
        made.append(parent + letter)
        merges.append(f"{parent} {letter}")
    names = AUDIO8_TOKENS | {f"<|semantic:{i}|>": AUDIO8_FIRST_CODE + i for i in range(recipe.num_semantic)}
    content = {
        "added_tokens": [{"id": recipe.num_text_tokens + at, "content": name} for name, at in names.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": QWEN2_STEPS},
        "model": {
            "type": "BPE",
            "vocab": {token: rank for rank, token in enumerate([*letters, *made[1:]])},
            "merges": merges,
        },
    }
    write_json(directory / "tokenizer.json", content)


def _fill(module: nn.Module, generator: torch.Generator, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield random parameters, scaled so that activations are near one whatever the sizes."""
    for name, parameter in module.named_parameters():
        tensor = torch.empty(parameter.shape, dtype=dtype)
        if name.endswith(("norm.weight", "alpha")):
            tensor.uniform_(0.9, 1.1, generator=generator)
        elif name.endswith("gamma"):
            tensor.uniform_(0.1, 0.3, generator=generator)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.02, generator=generator)
        else:
            fan_in = 1 if "embeddings" in name or "codebook" in name else parameter[0].numel()
            gain = 0.6 if parameter.dim() > 2 else 1.0  # convolutions' outputs add up on skip connections
            tensor.normal_(0.0, gain * fan_in**-0.5, generator=generator)
        yield name, tensor


def _buffers(codec: Dac) -> Iterator[tuple[str, Tensor]]:
    """Yield the tables that a published codec file contains."""
    for name, module in codec.named_modules():
        if isinstance(module, WindowTransformer):
            steps = module.rope_shape[0]
            yield f"{name}.freqs_cis", rope_table(*module.rope_shape).to(torch.bfloat16)
            yield f"{name}.causal_mask", torch.ones(steps, steps, dtype=torch.bool).tril_()
