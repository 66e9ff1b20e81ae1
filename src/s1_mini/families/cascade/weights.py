"""Read the tensors of a cascade from transformers' file or from suno's files (one per model); write the compact form.

transformers' names are the names in `network.py` with a prefix for each model; suno's names are translated to them.
Mask buffers, the unused fine head, and head rows of ids that are never generated are dropped. Fine heads that are tied
to the embeddings of their codebooks are not stored in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from s1_mini.codecs.encodec import weights as codec_weights
from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.base import Conversion
from s1_mini.families.cascade.config import (
    COMPACT,
    NUM_COARSE,
    PARTS,
    SETS,
    CascadeConfig,
    Numbers,
    make_config,
    read_generation,
    read_values,
)
from s1_mini.families.cascade.network import CausalGPT, FineGPT
from s1_mini.families.cascade.tokenizer import find_vocabulary
from s1_mini.families.cascade.voice import published_voices, read_published
from s1_mini.voices.format import for_file
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.weights.convert import is_large, steady_arithmetic, tensor_file
from s1_mini.weights.directory import MODEL_NAMES
from s1_mini.weights.files import read_object, read_tensors
from s1_mini.weights.fit import check_fit, fit, rename, skeleton
from s1_mini.weights.write import ArchiveEntry, copied, voice_file, written

PREFIXES = {"semantic": "semantic.", "coarse": "coarse_acoustics.", "fine": "fine_acoustics.", "codec": "codec_model."}

_MASK = re.compile(r"layers\.\d+\.attn\.bias$")
_RENAMED = (
    ("_orig_mod.", ""),
    ("transformer.", ""),
    ("h.", "layers."),
    (".c_attn.", ".att_proj."),
    (".attn.c_proj.", ".attn.out_proj."),
    (".mlp.c_proj.", ".mlp.out_proj."),
    (".c_fc.", ".in_proj."),
    (".ln_1.", ".layernorm_1."),
    (".ln_2.", ".layernorm_2."),
    ("ln_f.", "layernorm_final."),
    ("wte.", "input_embeds_layer."),
    ("wtes.", "input_embeds_layers."),
    ("wpe.", "position_embeds_layer."),
)
_HEADS = re.compile(r"lm_heads\.(\d+)\.weight")
_UNUSED_HEAD = PREFIXES["fine"] + "lm_heads.0.weight"


class Models(NamedTuple):
    """The three transformers; a transformer that runs in another process is None."""

    semantic: CausalGPT | None
    coarse: CausalGPT | None
    fine: FineGPT


def find_parts(directory: Path) -> dict[str, Path]:
    """Return the file of each model and of the codec, which may be the same file. Raises `CheckpointFileError`."""
    whole = next((directory / name for name in MODEL_NAMES if (directory / name).is_file()), None)
    if whole is not None:
        return dict.fromkeys(PREFIXES, whole)
    sets = [{stage: directory / name for stage, name in names.items()} for names in SETS]
    found = {file.name for files in sets for stage, file in files.items() if stage != "codec" and file.is_file()}
    if not found:
        raise CheckpointFileError(
            f"{directory} has no models: expected {', '.join(MODEL_NAMES)}, or suno's text.pt, coarse.pt and fine.pt"
        )
    # The error is about the most complete set of files.
    most = max(sets, key=lambda files: (sum(file.is_file() for file in files.values()), files["semantic"].is_file()))
    lacking = ", ".join(f"{file.name} ({stage})" for stage, file in most.items() if not file.is_file())
    if lacking:
        raise CheckpointFileError(f"{directory} has {', '.join(sorted(found))}, but not {lacking}")
    return most


def read_models(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, memory-mapped, with transformers' names. Raises `CheckpointError`."""
    tensors: dict[str, Tensor] = {}
    for file, stage in {file: stage for stage, file in find_parts(directory).items()}.items():
        tensors |= _published_names(stage, _read_part(file))
    return tensors


def _published_names(stage: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file with transformers' names."""
    if any(name.startswith(tuple(PREFIXES.values())) for name in tensors):
        return dict(tensors)

    def new_name(name: str) -> str:
        for old, new in _RENAMED:
            if old.startswith("."):
                name = name.replace(old, new)
            elif name.startswith(old):
                name = new + name.removeprefix(old)
        return PREFIXES[stage] + name

    return rename(tensors, new_name)


def _is_suno(file: Path) -> bool:
    return file.suffix == ".pt"


def _read_part(file: Path) -> dict[str, Tensor]:
    """Read a file. Raises `CheckpointFileError`, with the remedy if one of suno's files contains other objects."""
    try:
        return read_tensors(file)
    except CheckpointFileError as error:
        if not _is_suno(file) or "not only plain data and tensors" not in str(error):
            raise
        raise CheckpointFileError(
            f"{error}. Use the transformers version of these models (suno/bark, suno/bark-small), or, if you trust the "
            f"file, load it once with torch and save only its entries model and model_args as {file.name}"
        ) from None


def _suno_values(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the parts of config.json that suno's files contain, with transformers' keys; empty if there are none."""
    values: dict[str, dict[str, Any]] = {}
    if not any((directory / names["semantic"]).is_file() for names in SETS[1:]):
        return values
    for stage, file in find_parts(directory).items():
        if not _is_suno(file):
            continue
        _read_part(file)
        content = read_object(file)
        sizes = content.get("model_args") if isinstance(content, dict) else None
        if not isinstance(sizes, dict):
            raise CheckpointFileError(f"{file} has no model_args, which state the size of the model")
        names = {"n_layer": "num_layers", "n_head": "num_heads", "n_embd": "hidden_size"}
        names |= {name: name for name in ("block_size", "bias", "input_vocab_size", "output_vocab_size")}
        part = {"bias": False} | {names[name]: value for name, value in sizes.items() if name in names}
        if "vocab_size" in sizes:  # older files have one key for both vocabularies
            part = {"input_vocab_size": sizes["vocab_size"], "output_vocab_size": sizes["vocab_size"]} | part
        values[PARTS[stage]] = part
    return values


def read_config(directory: Path) -> CascadeConfig:
    """Read the config of a checkpoint, including the sizes that suno's files contain. Raises `CheckpointError`."""
    return make_config(read_values(directory, _suno_values(directory)), read_generation(directory))


def translate(tensors: Mapping[str, Tensor], config: CascadeConfig) -> dict[str, dict[str, Tensor]]:
    """Return each model's tensors with the names in `network.py`, and heads cut to the tokens that can be sampled.

    Raises `CheckpointMismatchError` for a missing model and for tensors that belong to no model.
    """
    numbers = config.numbers
    models: dict[str, dict[str, Tensor]] = {stage: {} for stage in PREFIXES}
    foreign = []
    for name, tensor in tensors.items():
        stage = next((stage for stage, prefix in PREFIXES.items() if name.startswith(prefix)), "")
        if not stage:
            foreign.append(name)
        elif not _is_mask(name, tensor):
            models[stage][name.removeprefix(PREFIXES[stage])] = tensor
    lacking = [PREFIXES[stage] for stage, named in models.items() if not named]
    if lacking:
        raise CheckpointMismatchError(
            f"no tensor begins with {' or '.join(lacking)}; a cascade needs all of its models"
        )
    if foreign:
        raise CheckpointMismatchError(f"the tensor {foreign[0]} does not belong to any model of a cascade")
    _cut(models["semantic"], "lm_head.weight", slice(numbers.semantic_size + 1))
    first = numbers.semantic_size
    _cut(models["coarse"], "lm_head.weight", slice(first, first + config.num_coarse_ids))
    models["fine"] = _fine_heads(models["fine"], numbers)
    del models["codec"]  # `codec_weights` translates the codec's tensors
    return models


def _is_mask(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is an attention mask [1, 1, S, S], not a linear layer's bias, which has one axis."""
    return bool(_MASK.search(name)) and tensor.ndim == 4


def _cut(named: dict[str, Tensor], name: str, rows: slice) -> None:
    """Reduce a head to these rows, unless it already has only them."""
    head = named.get(name)
    if head is not None and head.ndim == 2 and len(head) > rows.stop - (rows.start or 0):
        named[name] = head[rows]


def _fine_heads(named: Mapping[str, Tensor], numbers: Numbers) -> dict[str, Tensor]:
    """Return the tensors with heads numbered by pass and reduced to codes; the embedding replaces a missing head.

    In published files, head i generates book i + 1, and head 0 is unused.
    """
    kept = {name: tensor for name, tensor in named.items() if not _HEADS.fullmatch(name)}
    for book in range(NUM_COARSE, numbers.num_books):
        head = named.get(f"lm_heads.{book - 1}.weight", named.get(f"input_embeds_layers.{book}.weight"))
        if head is not None:
            kept[f"lm_heads.{book - NUM_COARSE}.weight"] = head
            _cut(kept, f"lm_heads.{book - NUM_COARSE}.weight", slice(numbers.codebook_size))
    return kept


def _fitting(
    config: CascadeConfig, tensors: Mapping[str, Tensor], source: str
) -> dict[str, tuple[nn.Module, dict[str, Tensor]]]:
    """Return each network on the meta device, with its tensors. Raises `CheckpointMismatchError` unless all fit."""
    networks: dict[str, nn.Module] = {
        "semantic": skeleton(lambda: CausalGPT(config.semantic, config.numbers.semantic_size + 1)),
        "coarse": skeleton(lambda: CausalGPT(config.coarse, config.num_coarse_ids)),
        "fine": skeleton(lambda: FineGPT(config.fine, config.numbers)),
    }
    named = translate(tensors, config)
    for stage, network in networks.items():
        check_fit(network, named[stage], source=f"{source}, {PREFIXES[stage]}*")
    return {stage: (network, named[stage]) for stage, network in networks.items()}


def build_models(
    config: CascadeConfig,
    tensors: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    devices: Mapping[str, torch.device],
    source: str,
    elsewhere: Collection[str] = (),
) -> Models:
    """Build the three networks, each on its device, except those in `elsewhere`, which run in other processes.

    All tensors are checked before a network is built. Raises `CheckpointMismatchError`.
    """
    built: dict[str, Any] = dict.fromkeys(elsewhere)
    for stage, part in _fitting(config, tensors, source).items():
        if stage not in elsewhere:
            built[stage] = fit(*part, source=source, dtype=dtype, device=devices[stage])
    return Models(**built)


@steady_arithmetic()
def compact_files(checkpoint: Path, conversion: Conversion) -> list[ArchiveEntry]:
    """Return all files of the compact form.

    Each model has a `.safetensors` file, and voices have the engine's format. Masks and training statistics are
    dropped; the codec's weight norm is replaced by plain weights.

    Raises `CheckpointError`, or `ParameterError` for int8.
    """
    conversion.check_not_int8("a cascade")
    config, tensors = read_config(checkpoint), read_models(checkpoint)
    _fitting(config, tensors, checkpoint.name)
    codec_weights.check(config.codec, tensors, prefix=PREFIXES["codec"], source=f"{PREFIXES['codec']}*")
    values = read_values(checkpoint, _suno_values(checkpoint))
    members = [written("config.json", json.dumps(values, indent=2) + "\n")]
    if (checkpoint / "generation_config.json").exists():
        members.append(copied(checkpoint / "generation_config.json", "generation_config.json"))
    vocabulary = find_vocabulary(checkpoint)
    members.append(copied(vocabulary, vocabulary.name))
    for stage, prefix in PREFIXES.items():
        named = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if stage == "codec":
            codec = codec_weights.translate(named, prefix=prefix, encodes=not conversion.decode_only)
            kept = {prefix + name: tensor for name, tensor in codec.items()}
        else:
            kept = {name: x for name, x in named.items() if not _is_mask(name, x) and name != _UNUSED_HEAD}
        members.append(tensor_file(COMPACT[stage], kept, partial(_dtype, stage, conversion)))
    for name, files in published_voices(checkpoint).items():
        voice = for_file(read_published(config.numbers, files, name))
        members.append(voice_file(f"{VOICES}/{name}.safetensors", voice))
    return members


def _dtype(stage: str, conversion: Conversion, name: str, tensor: Tensor) -> torch.dtype:
    """Return the dtype to write. Small tensors of the codec, and its tensors that determine codes, stay in float32."""
    if stage == "codec":
        determines_codes = ".quantizer." in name or ".encoder." in name
        rounds = conversion.codec_precision == "float16" and not determines_codes and is_large(tensor)
        return torch.float16 if rounds else torch.float32
    return tensor.dtype if conversion.precision == "keep" else getattr(torch, conversion.precision)
