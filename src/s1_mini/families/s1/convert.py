"""The files of an S1 checkpoint in the compact form: weight norm folded, dead buffers gone, half precision.

The model keeps the precision it is stored in. Of the codec, the large kernels become float16, and what decides on
codes or is small does so only where float16 holds it exactly; S1-mini's codec shrinks from 1.87 GB to 0.8 GB. In eight
bits (`int8`) are the tables and kernels that are not small, one scale a row; the rest is as it is or as above.
"""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.codecs.dac import weights as dac_weights
from s1_mini.codecs.dac.config import DacConfig, read_dac_config
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import CodecPrecision, Conversion, ModelPrecision
from s1_mini.families.s1 import weights as s1_weights
from s1_mini.families.s1.settings import SMALL_FILES
from s1_mini.weights.convert import (
    ConvertedFile,
    Target,
    TensorFile,
    Translate,
    plan,
    steady_arithmetic,
)
from s1_mini.weights.directory import find_tensors, read_json
from s1_mini.weights.eight import all_widened, stem
from s1_mini.weights.weight_norm import folded_name
from s1_mini.weights.write import Member, copied, written

_NARROW = 2**14  # elements; smaller tensors are not worth eight bits


def compact_files(checkpoint: Path, conversion: Conversion) -> list[Member]:
    """Return all files but voices; the weights are read with their chunks. Raises `CheckpointError`."""
    codec = read_dac_config(checkpoint)
    return [
        *(copied(checkpoint / name, name) for name in SMALL_FILES),
        written("codec_config.json", json.dumps(dataclasses.asdict(codec), indent=2) + "\n"),
        _model(checkpoint, conversion.precision).member("model.safetensors"),
        _codec(checkpoint, codec, conversion.codec_precision, decode_only=conversion.decode_only).member(
            "codec.safetensors"
        ),
    ]


def _model(checkpoint: Path, precision: ModelPrecision) -> ConvertedFile:
    file = TensorFile(find_tensors(checkpoint, "model"))
    translate = _widening(file, s1_weights.translate)
    targets = plan(file, translate, lambda name: s1_weights.joined_name(stem(name)))
    named = translate(file.shapes())
    _untie(checkpoint, targets, named)
    s1_weights.check(checkpoint, named)
    if precision not in ("keep", "int8"):
        return ConvertedFile(dict.fromkeys(targets, getattr(torch, precision)))
    narrows = precision == "int8"
    return ConvertedFile(
        {one: torch.int8 if (narrows and _may_narrow(one)) or _is_narrow(one) else one.dtype for one in targets}
    )


def _widening(file: TensorFile, translate: Translate) -> Translate:
    """Return `translate` for a file whose weights may be in eight bits."""
    return lambda tensors: translate(all_widened(tensors, file.path.name))


def _is_narrow(target: Target) -> bool:
    return any(target.file.shapes()[name].dtype == torch.int8 for name in target.sources)


def _may_narrow(target: Target) -> bool:
    """Whether a tensor has rows and is large enough for int8: rows of one or two numbers would grow by their scale."""
    return len(target.shape) > 1 and target.num_elements >= max(_NARROW, 3 * target.shape[0])


def _untie(checkpoint: Path, targets: list[Target], named: dict[str, Tensor]) -> None:
    """Check that a head which is stored beside embeddings that it is tied to is the same."""
    both = [target for target in targets if target.name in {"output.weight", "embeddings.weight"}]
    if not read_json(checkpoint / "config.json").get("tie_word_embeddings") or len(both) < 2:
        return
    pairs = zip(*(target.pieces() for target in both), strict=False)
    if both[0].shape != both[1].shape or not all(torch.equal(one, other) for one, other in pairs):
        raise CheckpointMismatchError("config.json ties the head to the embeddings, but model weights have another")
    named["output.weight"] = named["embeddings.weight"]


def _codec(checkpoint: Path, config: DacConfig, precision: CodecPrecision, *, decode_only: bool) -> ConvertedFile:
    file = TensorFile(find_tensors(checkpoint, "codec"))
    shapes = file.shapes()
    encodes = dac_weights.can_encode(shapes) and not decode_only
    translate = _widening(file, partial(dac_weights.translate, encodes=encodes))
    dac_weights.check(config, translate(shapes), encodes=encodes)
    targets = plan(file, translate, lambda name: folded_name(stem(name)))
    stored = dict.fromkeys(targets, torch.float32)
    if precision != "float32":
        with steady_arithmetic():
            for target in targets:
                narrows = precision == "int8" and _may_narrow(target) and not _decides(target.name)
                if narrows or _is_narrow(target):
                    stored[target] = torch.int8
                elif _may_round(target):
                    stored[target] = torch.float16
    return ConvertedFile(stored)


def _may_round(target: Target) -> bool:
    """Whether a tensor of the codec may be float16: it loses nothing, or is large and decides on no code."""
    if not _decides(target.name) and target.is_large:
        largest = torch.finfo(torch.float16).max
        if all(bool(piece.abs().max() < largest) for piece in target.pieces()):
            return True
    return all(torch.equal(piece.half().to(piece.dtype), piece) for piece in target.pieces())


def _decides(name: str) -> bool:
    return "codebook" in name or "in_proj" in name
