"""Load the tensors of a SpeechT5 checkpoint, which have their published names, and write its compact form.

In the compact form, unused buffers are dropped and projections are joined. With the precision `keep`, the model keeps
its stored precision; otherwise, its layers get the given precision, and prenet, heads and post-net become float32.
Large kernels of the vocoder become float16 if that is the codec precision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.codecs.hifigan.model import HifiGan
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import Conversion
from s1_mini.families.mel.config import KEY, MelConfig, VocoderFiles, read_configs
from s1_mini.families.mel.network import MelNetwork
from s1_mini.families.mel.settings import FOLDERS
from s1_mini.families.mel.tokenizer import FILE, CharTokenizer
from s1_mini.families.mel.voice import vectors_beside
from s1_mini.voices.format import for_file
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.voices.library import SUFFIX
from s1_mini.weights.convert import is_large, tensor_file
from s1_mini.weights.directory import find_model, read_json
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import below_prefix, check_fit, fit, skeleton, strip_prefix
from s1_mini.weights.write import ArchiveEntry, copied, voice_file, written

PREFIX = "speecht5."
INSIDE = "vocoder."  # prefix of the vocoder's tensors in the model's file
NORM_EPS = 1e-5  # of batch norms; the original has torch's default

_DEAD = (".encode_positions.pe", ".num_batches_tracked")  # the engine computes them, or only training needs them
_NORMED = re.compile(r"(speech_decoder_postnet\.layers\.\d+)\.batch_norm\.\w+")
_PART = re.compile(r"(.*\.(?:attention|self_attn|encoder_attn))\.([qkv])_proj\.(weight|bias)")
_LAYERS = (".wrapped_encoder.layers.", ".wrapped_decoder.layers.")
_NORM = ("weight", "bias", "running_mean", "running_var")


def translate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with the network's names: prefix removed, unused buffers dropped, projections joined.

    Batch norms stay separate; see `fold`. Tensors that are already translated stay unchanged. Raises
    `CheckpointMismatchError` for missing parts of a projection.
    """
    named = strip_prefix(tensors, PREFIX)
    named = {name: x for name, x in named.items() if not name.endswith(_DEAD) and not name.startswith(INSIDE)}
    for joined in dict.fromkeys(joined_name(name) for name in named if joined_name(name) != name):
        parts = _parts(joined)
        missing = [part for part in parts if part not in named]
        if missing:
            raise CheckpointMismatchError(
                f"the model's weights for {joined} are incomplete: {', '.join(missing)} missing"
            )
        named[joined] = _join(parts, [named.pop(part) for part in parts])
    return named


def fold(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace the post-net's convolutions and batch norms by equivalent convolutions.

    Raises `CheckpointMismatchError` for missing or incompatible parts.
    """
    folded = dict(named)
    for stem in dict.fromkeys(found[1] for name in named if (found := _NORMED.fullmatch(name))):
        parts = [f"{stem}.conv.weight", *(f"{stem}.batch_norm.{name}" for name in _NORM)]
        missing = [part for part in parts if part not in folded]
        if missing:
            raise CheckpointMismatchError(
                f"the model's weights for {stem} are incomplete: {', '.join(missing)} missing"
            )
        kernel, weight, bias, mean, variance = (folded.pop(part).float() for part in parts)
        if kernel.dim() != 3 or any(each.shape != kernel.shape[:1] for each in (weight, bias, mean, variance)):
            raise CheckpointMismatchError(f"the convolution and the batch norm of {stem} have incompatible shapes")
        scale = weight * torch.rsqrt(variance + NORM_EPS)
        folded[f"{stem}.conv.weight"] = kernel * scale[:, None, None]
        folded[f"{stem}.conv.bias"] = bias - mean * scale
    return folded


def joined_name(name: str) -> str:
    """Return the name of the joined tensor that a projection becomes part of. Other names are returned unchanged."""
    name = name.removeprefix(PREFIX)
    part = _PART.fullmatch(name)
    if part is None:
        return name
    if part[1].endswith("encoder_attn"):
        return name if part[2] == "q" else f"{part[1]}.kv_proj.{part[3]}"
    return f"{part[1]}.qkv_proj.{part[3]}"


def _parts(joined: str) -> list[str]:
    stem, projection, kind = joined.rsplit(".", 2)
    return [f"{stem}.{letter}_proj.{kind}" for letter in projection.removesuffix("_proj")]


def _join(parts: list[str], tensors: list[Tensor]) -> Tensor:
    if len({tensor.shape[1:] for tensor in tensors}) > 1 or tensors[0].dim() == 0:
        raise CheckpointMismatchError(f"the weights {', '.join(parts)} have incompatible shapes")
    return torch.cat(tensors)


def build_network(config: MelConfig, tensors: Mapping[str, Tensor], device: torch.device, source: str) -> MelNetwork:
    """Build the network in float32. Raises `CheckpointMismatchError` if config and weights contradict each other."""
    network = skeleton(lambda: MelNetwork(config))
    return fit(network, fold(translate(tensors)), source=source, dtype=torch.float32, device=device)


def check(config: MelConfig, translated: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise `CheckpointMismatchError` unless the tensors from `translate` fit `config`."""
    check_fit(skeleton(lambda: MelNetwork(config)), fold(translated), source=str(source))


def compact_files(checkpoint: Path, conversion: Conversion) -> list[ArchiveEntry]:
    """Return all files of the compact form. Raises `CheckpointError`, or `ParameterError` for int8."""
    conversion.check_not_int8("SpeechT5")
    config, vocoder = read_configs(checkpoint)
    CharTokenizer.from_directory(checkpoint, config)
    values = read_json(checkpoint / "config.json")
    inside = values.pop(KEY, None)
    folder = vocoder.weights.parent
    sizes = inside if vocoder.prefix else read_json(folder / "config.json")
    return [
        written("config.json", json.dumps(values, indent=2) + "\n"),
        copied(checkpoint / FILE, FILE),
        _model(checkpoint, config, conversion),
        written(f"{FOLDERS[0]}/config.json", json.dumps(sizes, indent=2) + "\n"),
        _vocoder(vocoder, conversion),
        *_vectors(checkpoint, config.speaker_size),
    ]


def _vectors(checkpoint: Path, size: int) -> Iterator[ArchiveEntry]:
    """Yield the voices that are `.npy` files, in the engine's format."""
    for name, voice in vectors_beside(size, checkpoint).items():
        if not (checkpoint / VOICES / f"{name}{SUFFIX}").exists():
            yield voice_file(f"{VOICES}/{name}{SUFFIX}", for_file(voice.read()))


def _model(checkpoint: Path, config: MelConfig, conversion: Conversion) -> ArchiveEntry:
    path = find_model(checkpoint)
    named = translate(read_tensors(path))
    check(config, named, path)

    def dtype_of(name: str, tensor: Tensor) -> torch.dtype:
        if conversion.precision == "keep":
            return tensor.dtype
        is_layer = any(part in f".{name}" for part in _LAYERS)
        return getattr(torch, conversion.precision) if is_layer else torch.float32

    return tensor_file("model.safetensors", named, dtype_of)


def _vocoder(files: VocoderFiles, conversion: Conversion) -> ArchiveEntry:
    named = below_prefix(read_tensors(files.weights), files.prefix)
    check_fit(skeleton(lambda: HifiGan(files.config)), named, source=str(files.weights))
    rounds = conversion.codec_precision == "float16"
    return tensor_file(
        f"{FOLDERS[0]}/model.safetensors",
        named,
        lambda _, tensor: torch.float16 if rounds and is_large(tensor) else torch.float32,
    )
