"""Take the tensors of a cascade from a checkpoint: transformers' one file, or suno's file for each model.

transformers' names are the networks' own behind a prefix for each model. suno's are translated to them. Buffers of
masks are left out, and so are the fine head that is never used and rows of heads that cannot be chosen. Fine heads may
be tied to the embeddings of their books, and then are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.cascade.config import NUM_COARSE, SETS, CascadeConfig, Numbers, read_cascade_config
from s1_mini.families.cascade.network import CausalGPT, FineGPT
from s1_mini.weights.directory import MODEL_NAMES
from s1_mini.weights.files import read_object, read_tensors
from s1_mini.weights.fit import check_fit, fit, rename, skeleton

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


@dataclass(frozen=True)
class Models:
    """The three transformers."""

    semantic: CausalGPT | None  # None where another process has it
    coarse: CausalGPT | None
    fine: FineGPT

    def __iter__(self) -> Iterator[CausalGPT | FineGPT]:
        return (model for model in (self.semantic, self.coarse, self.fine) if model is not None)


def find_parts(directory: Path) -> dict[str, Path]:
    """Return the file that holds each model and the codec; one may hold all. Raises `CheckpointFileError`."""
    whole = next((directory / name for name in MODEL_NAMES if (directory / name).is_file()), None)
    if whole is not None:
        return dict.fromkeys(PREFIXES, whole)
    sets = [{stage: directory / name for stage, name in names.items()} for names in SETS]
    # Of a set that is not whole, that is told of which most is there; the codec alone is none.
    most = max(sets, key=lambda files: (sum(file.is_file() for file in files.values()), files["semantic"].is_file()))
    there = [file.name for files in sets for stage, file in files.items() if stage != "codec" and file.is_file()]
    if not there:
        raise CheckpointFileError(
            f"{directory} holds no models: expected {', '.join(MODEL_NAMES)}, or suno's text.pt, coarse.pt and fine.pt"
        )
    lacking = [stage for stage, file in most.items() if not file.is_file()]
    if lacking:
        told = ", ".join(f"{most[stage].name} ({stage})" for stage in lacking)
        raise CheckpointFileError(f"{directory} lacks {told} beside {', '.join(sorted(set(there)))}")
    return most


def read_models(directory: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by transformers' names, memory-mapped. Raises `CheckpointError`."""
    tensors: dict[str, Tensor] = {}
    for file, stage in {file: stage for stage, file in find_parts(directory).items()}.items():
        tensors |= named_as_published(stage, read_suno(file) if is_suno(file) else read_tensors(file))
    return tensors


def named_as_published(stage: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a file by their names in transformers' one file."""
    prefixes = tuple(PREFIXES.values())
    if any(name.startswith(prefixes) for name in tensors):
        return dict(tensors)
    return {PREFIXES[stage] + name: tensor for name, tensor in suno_names(tensors).items()}


def is_suno(file: Path) -> bool:
    """Whether a file is one of suno's."""
    return file.suffix == ".pt"


def read_suno(file: Path) -> dict[str, Tensor]:
    """Read a file of suno's. Raises `CheckpointFileError`, with a way out where more than tensors is in it."""
    try:
        return read_tensors(file)
    except CheckpointFileError as error:
        if "not only plain data and tensors" not in str(error):
            raise
        raise CheckpointFileError(
            f"{error}. Use the same models as transformers has them (suno/bark, suno/bark-small), or, if you trust the "
            f"file, load it once with torch and save its entries model and model_args alone as {file.name}"
        ) from None


def suno_sizes(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the parts of transformers' config that suno's files tell of themselves; none of others."""
    given: dict[str, dict[str, Any]] = {}
    if not any((directory / names["semantic"]).is_file() for names in SETS[1:]):
        return given
    for stage, file in find_parts(directory).items():
        if not is_suno(file):
            continue
        read_suno(file)
        content = read_object(file)
        told = content.get("model_args") if isinstance(content, dict) else None
        if not isinstance(told, dict):
            raise CheckpointFileError(f"{file} has no model_args: it does not say how large its model is")
        names = {"n_layer": "num_layers", "n_head": "num_heads", "n_embd": "hidden_size"}
        names |= {name: name for name in ("block_size", "bias", "input_vocab_size", "output_vocab_size")}
        part = {"bias": False} | {names[name]: value for name, value in told.items() if name in names}
        if "vocab_size" in told:  # of older files
            part = {"input_vocab_size": told["vocab_size"], "output_vocab_size": told["vocab_size"]} | part
        given[PREFIXES[stage].removesuffix(".") + "_config"] = part
    return given


def read_config(directory: Path) -> CascadeConfig:
    """Read all that says how large a checkpoint is, suno's files included. Raises `CheckpointError`."""
    return read_cascade_config(directory, suno_sizes(directory))


def suno_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return suno's tensors by transformers' names."""

    def new_name(name: str) -> str:
        for old, new in _RENAMED:
            if old.startswith("."):
                name = name.replace(old, new)
            elif name.startswith(old):
                name = new + name.removeprefix(old)
        return name

    return rename(tensors, new_name)


def translate(tensors: Mapping[str, Tensor], config: CascadeConfig) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each model by its network's names, heads cut to what can be sampled.

    Raises `CheckpointMismatchError` for a model that is missing, and for tensors of none.
    """
    numbers = config.numbers
    models: dict[str, dict[str, Tensor]] = {stage: {} for stage in PREFIXES}
    foreign = []
    for name, tensor in tensors.items():
        stage = next((stage for stage, prefix in PREFIXES.items() if name.startswith(prefix)), "")
        if not stage:
            foreign.append(name)
        elif not is_mask(name, tensor):
            models[stage][name.removeprefix(PREFIXES[stage])] = tensor
    lacking = [PREFIXES[stage] for stage, named in models.items() if not named]
    if lacking:
        raise CheckpointMismatchError(
            f"there are no weights of {', '.join(lacking)}*: a cascade needs all of its models"
        )
    if foreign:
        raise CheckpointMismatchError(f"{foreign[0]} is of no model of a cascade")
    _cut(models["semantic"], "lm_head.weight", slice(numbers.semantic_size + 1))
    first = numbers.semantic_size
    _cut(models["coarse"], "lm_head.weight", slice(first, first + config.num_coarse_ids))
    models["fine"] = _fine_heads(models["fine"], numbers)
    del models["codec"]  # whose names are its own to know
    return models


def is_mask(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is a buffer that says where one may look: [1, 1, S, S], where a linear layer's has one axis."""
    return bool(_MASK.search(name)) and tensor.ndim == 4


def _cut(named: dict[str, Tensor], name: str, rows: slice) -> None:
    """Keep some rows of a head; one that is cut already stays as it is."""
    head = named.get(name)
    if head is not None and head.ndim == 2 and len(head) > rows.stop - (rows.start or 0):
        named[name] = head[rows]


def _fine_heads(named: Mapping[str, Tensor], numbers: Numbers) -> dict[str, Tensor]:
    """Number heads by pass, cut to codes, those that are not stored being their books' embeddings.

    Published, head i makes book i + 1, and the first is of no use.
    """
    kept = {name: tensor for name, tensor in named.items() if not _HEADS.fullmatch(name)}
    for book in range(NUM_COARSE, numbers.num_books):
        head = named.get(f"lm_heads.{book - 1}.weight", named.get(f"input_embeds_layers.{book}.weight"))
        if head is not None:
            kept[f"lm_heads.{book - NUM_COARSE}.weight"] = head
            _cut(kept, f"lm_heads.{book - NUM_COARSE}.weight", slice(numbers.codebook_size))
    return kept


def _skeletons(config: CascadeConfig) -> dict[str, nn.Module]:
    with skeleton():
        return {
            "semantic": CausalGPT(config.semantic, config.numbers.semantic_size + 1),
            "coarse": CausalGPT(config.coarse, config.num_coarse_ids),
            "fine": FineGPT(config.fine, config.numbers),
        }


def check(config: CascadeConfig, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise `CheckpointMismatchError` unless the three models' tensors fit `config`; shapes are enough."""
    _check(_skeletons(config), translate(tensors, config), source)


def _check(modules: Mapping[str, nn.Module], named: Mapping[str, Mapping[str, Tensor]], source: str) -> None:
    for stage, module in modules.items():
        check_fit(module, named[stage], source=f"{source}, {PREFIXES[stage]}*")


def build_models(
    config: CascadeConfig,
    tensors: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    devices: Mapping[str, torch.device],
    source: str,
    elsewhere: Collection[str] = (),
) -> Models:
    """Build the three networks, each on its device, but those that are `elsewhere`.

    All are checked before any is built. Raises `CheckpointMismatchError`.
    """
    named, modules = translate(tensors, config), _skeletons(config)
    _check(modules, named, source)
    built: dict[str, Any] = dict.fromkeys(modules)
    for stage in modules.keys() - set(elsewhere):
        fit(modules[stage], named[stage], source=source, dtype=dtype, device=devices[stage])
        built[stage] = modules[stage]
    return Models(**built)
