"""Write a Qwen3-TTS checkpoint with random weights in the published form. It generates noise.

Checkpoints of published sizes never end by themselves, so that benchmarks choose the length by `max_new_tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s1_mini.codecs.qwen12.config import Qwen12Config
from s1_mini.codecs.qwen12.random import PUBLISHED, TINY_BOOKS, random_tensors
from s1_mini.codecs.qwen12.random import TINY as TINY_CODEC
from s1_mini.codecs.qwen12.speaker import PREFIX as SPEAKER_PREFIX
from s1_mini.codecs.qwen12.speaker import SpeakerConfig, SpeakerEncoder
from s1_mini.families.base import Form
from s1_mini.families.codec_lm.vocabulary import byte_letters
from s1_mini.families.qwen3.config import NUM_CONTROLS, Qwen3Config
from s1_mini.families.qwen3.settings import CODEC_FOLDER
from s1_mini.families.qwen3.weights import published_shapes
from s1_mini.weights.fit import skeleton
from s1_mini.weights.write import new_directory, write_json, write_tensors

# Ids of the published models, as distances from the first id after the codes or after the text tokens.
CODEC_IDS = {"pad_id": 100, "bos_id": 101, "eos_token_id": 102, "think_id": 106, "nothink_id": 107}
CODEC_IDS |= {"think_bos_id": 108, "think_eos_id": 109}
LANGUAGES = {"chinese": 7, "english": 2, "german": 5, "italian": 22, "portuguese": 23}
LANGUAGES |= {"spanish": 6, "japanese": 10, "korean": 16, "french": 13, "russian": 21}
DIALECTS = {"beijing_dialect": 26, "sichuan_dialect": 14}
SPEAKERS = {"serena": 1018, "vivian": 1017, "uncle_fu": 962, "ryan": 1013, "aiden": 813}
SPEAKERS |= {"ono_anna": 825, "sohee": 816, "eric": 827, "dylan": 830}
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
NUM_TEXT_TOKENS = 151_643
WORDS = ("assistant", "user")  # single tokens of each vocabulary, because the prompts need them

TINY = {"hidden": 32, "inner": 48, "heads": 4, "kv_heads": 2, "head_dim": 16, "layers": 2}
TINY_DEPTH = TINY | {"hidden": 24, "inner": 32, "head_dim": 8}
FULL = {"hidden": 2048, "inner": 6144, "heads": 16, "kv_heads": 8, "head_dim": 128, "layers": 28}
FULL_DEPTH = FULL | {"hidden": 1024, "inner": 3072, "layers": 5}
KINDS = {"": "custom_voice", "base": "base", "design": "voice_design"}


def model_json(size: str) -> dict[str, Any]:
    """Return the `config.json` of a size, such as 0.6b-base or tiny."""
    stem, _, kind = size.partition("-")
    is_tiny, kind = stem == "tiny", KINDS[kind]
    backbone = TINY if is_tiny else FULL if stem == "1.7b" else FULL | {"hidden": 1024, "inner": 3072}
    depth = TINY_DEPTH if is_tiny else FULL_DEPTH
    codes, books, text = (64, TINY_BOOKS, 300) if is_tiny else (2048, 16, NUM_TEXT_TOKENS)
    text_dim = 24 if is_tiny else 2048
    is_custom = kind == "custom_voice"
    talker = _block(backbone) | {
        **{f"codec_{name}": codes + distance for name, distance in CODEC_IDS.items()},
        "codec_language_id": {
            name: codes + each for name, each in (LANGUAGES | (DIALECTS if is_custom else {})).items()
        },
        "spk_id": {name: codes + each for name, each in SPEAKERS.items()} if is_custom else {},
        "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in SPEAKERS} if is_custom else {},
        "max_position_embeddings": 2048 if is_tiny else 32_768,
        "num_code_groups": books,
        "text_hidden_size": text_dim,
        "text_vocab_size": text + (36 if is_tiny else 293),
        "vocab_size": codes + NUM_CONTROLS,
        "code_predictor_config": _block(depth) | {"num_code_groups": books, "vocab_size": codes},
    }
    config = {
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6" if stem == "0.6b" else "1b7",
        "tts_model_type": kind,
        "assistant_token_id": token_ids(text)[WORDS[0]],
        "im_start_token_id": text + 1,
        "im_end_token_id": text + 2,
        "tts_pad_token_id": text + 28,
        "tts_bos_token_id": text + 29,
        "tts_eos_token_id": text + 30,
        "talker_config": talker,
    }
    if kind == "base":
        tiny: dict[str, Any] = {
            "enc_channels": [16, 16, 16, 32],
            "enc_kernel_sizes": [5, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 1],
        }
        tiny |= {"enc_res2net_scale": 4, "enc_se_channels": 4, "enc_attention_channels": 8}
        sizes = {"enc_dim": backbone["hidden"], "sample_rate": 24_000}
        config["speaker_encoder_config"] = sizes | (tiny if is_tiny else {})
    return config


def _block(sizes: Mapping[str, int]) -> dict[str, Any]:
    return {
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["inner"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "num_hidden_layers": sizes["layers"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
    }


def codec_json(size: str) -> dict[str, Any]:
    """Return the codec's `config.json` of a size."""
    return TINY_CODEC if size.startswith("tiny") else PUBLISHED


def token_ids(count: int) -> dict[str, int]:
    """Return a vocabulary of single bytes, the words of prompts with their beginnings, and made-up tokens."""
    tokens = list(byte_letters())
    tokens += [word[:length] for word in WORDS for length in range(2, len(word) + 1)]
    fillers = (f"filler{index}" for index in range(len(tokens), count))
    return {token: index for index, token in enumerate([*tokens, *fillers])}


def write_random(directory: Path, *, size: str, form: Form, seed: int) -> None:  # noqa: ARG001 - one form
    """Write a new checkpoint directory. Raises `CheckpointFileError` if it is not empty or cannot be written."""
    model, codec = model_json(size), codec_json(size)
    with new_directory(directory) as target:
        (target / CODEC_FOLDER).mkdir()
        write_json(target / "config.json", model)
        write_json(target / CODEC_FOLDER / "config.json", codec)
        write_json(target / "generation_config.json", {"max_new_tokens": 8192})
        write_json(target / "vocab.json", token_ids(300 if size.startswith("tiny") else NUM_TEXT_TOKENS))
        write_tensors(target / "model.safetensors", random_model(model, seed, ends=size.startswith("tiny")))
        write_tensors(
            target / CODEC_FOLDER / "model.safetensors", random_tensors(Qwen12Config.from_json(codec), seed + 1)
        )


def random_model(values: Mapping[str, Any], seed: int = 0, *, ends: bool = True) -> dict[str, Tensor]:
    """Return random tensors under every published name of the model, in bfloat16.

    Without `ends`, the end's logit is 0, which is so far below the highest logits that the end is not sampled.
    """
    config = Qwen3Config.from_json(values)
    shapes = published_shapes(config)
    if config.speaker_encoder:
        encoder = skeleton(lambda: SpeakerEncoder(SpeakerConfig.from_json(config.speaker_encoder)))
        shapes |= {SPEAKER_PREFIX + name: tuple(weight.shape) for name, weight in encoder.named_parameters()}
    tensors = _fill(shapes, torch.Generator().manual_seed(seed), torch.bfloat16)
    if not ends:
        tensors["talker.codec_head.weight"][config.codec.end] = 0
    return tensors


def _fill(shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return random tensors, scaled so that activations are near one for any size."""
    tensors = {}
    for name, shape in sorted(shapes.items()):
        tensor = torch.empty(shape, dtype=dtype)
        if name.endswith("norm.weight"):
            tensor.uniform_(0.9, 1.1, generator=generator)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.02, generator=generator)
        else:
            fan_in = 1 if "embedding" in name else math.prod(shape[1:])
            tensor.normal_(0.0, fan_in**-0.5, generator=generator)
        tensors[name] = tensor
    return tensors
