"""The files of an S1 checkpoint in the compact form: weight norm folded, dead buffers gone, half precision.

The model keeps the precision it is stored in. Of the codec, the large kernels become float16, and what decides on
codes or is small does so only where float16 holds it exactly; S1-mini's codec shrinks from 1.87 GB to 0.8 GB. In eight
bits (`int8`) are the tables and kernels that are not small, one scale a row; the rest is as it is or as above.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.codecs.dac import weights as dac_weights
from s1_mini.codecs.dac.config import DacConfig, read_dac_config
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import CodecPrecision, Conversion, ModelPrecision
from s1_mini.families.s1 import weights as s1_weights
from s1_mini.families.s1.family import SMALL_FILES
from s1_mini.weights.directory import find_tensors, read_json
from s1_mini.weights.eight import all_widened, stem
from s1_mini.weights.members import Member, copied, written
from s1_mini.weights.stream import (
    ConvertedFile,
    Target,
    TensorFile,
    Translate,
    plan,
    read_pieces,
    steady_arithmetic,
)
from s1_mini.weights.weight_norm import folded_name

_SMALL = 2**16  # elements; smaller tensors are not worth rounding
_NARROW = 2**14  # … in eight bits


def compact_files(checkpoint: Path, conversion: Conversion) -> list[Member]:
    """Give all files but voices, the weights read when their chunks are asked for. Raises `CheckpointError`."""
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
    _untie(checkpoint, file, targets, named, translate)
    s1_weights.check(checkpoint, named)
    stored = {target: named[target.name].dtype for target in targets}
    if precision in ("keep", "int8"):
        narrows = precision == "int8"
        stored |= {one: torch.int8 for one in targets if (narrows and _may_narrow(one)) or _is_narrow(file, one)}
    else:
        stored = dict.fromkeys(stored, getattr(torch, precision))
    return ConvertedFile(file, translate, stored)


def _widening(file: TensorFile, translate: Translate) -> Translate:
    """Let weights that are stored in eight bits be wide before they are translated."""
    return lambda tensors: translate(all_widened(tensors, file.path.name))


def _is_narrow(file: TensorFile, target: Target) -> bool:
    """Whether the file has a tensor in eight bits."""
    return any(file.shapes()[name].dtype == torch.int8 for name in target.sources)


def _may_narrow(target: Target) -> bool:
    """Whether a tensor has rows and is large enough for int8: rows of one or two numbers would grow by their scale."""
    return len(target.shape) > 1 and target.num_elements >= max(_NARROW, 3 * target.shape[0])


def _untie(
    checkpoint: Path, file: TensorFile, targets: list[Target], named: dict[str, Tensor], translate: Translate
) -> None:
    """Where a head is stored beside embeddings that it is tied to, see that both are the same."""
    both = [target for target in targets if target.name in {"output.weight", "embeddings.weight"}]
    if not read_json(checkpoint / "config.json").get("tie_word_embeddings") or len(both) < 2:
        return
    pairs = zip(*(read_pieces(file, target, translate) for target in both), strict=False)
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
                if narrows or _is_narrow(file, target):
                    stored[target] = torch.int8
                elif _may_round(target.name, target.num_elements, partial(read_pieces, file, target, translate)):
                    stored[target] = torch.float16
    return ConvertedFile(file, translate, stored)


def _may_round(name: str, num_elements: int, pieces: Callable[[], Iterator[Tensor]]) -> bool:
    """Tell whether a tensor of the codec may be float16: it loses nothing, or is large and decides on no code.

    `pieces` gives the tensor in one piece or several, as often as it is asked.
    """
    if not _decides(name) and num_elements >= _SMALL:
        largest = torch.finfo(torch.float16).max
        if all(bool(piece.abs().max() < largest) for piece in pieces()):
            return True
    return all(torch.equal(piece.half().to(piece.dtype), piece) for piece in pieces())


def _decides(name: str) -> bool:
    """Whether a tensor of the codec decides on codes."""
    return "codebook" in name or "in_proj" in name
