"""Take the tensors of an Encodec from a checkpoint, its own or one that holds it under a prefix, as Bark's does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.fit import check_fit, fit, skeleton
from s1_mini.weights.weight_norm import fold_weight_norm

_TRAINING = (".codebook.inited", ".codebook.cluster_size", ".codebook.embed_avg")  # of no use in inference
_ENCODER = "encoder."


def translate(
    tensors: Mapping[str, Tensor], *, prefix: str = "", encodes: bool = True, source: str = "codec weights"
) -> dict[str, Tensor]:
    """Take the tensors under `prefix` and give them the codec's names: weight norm folded, statistics dropped.

    Without `encodes` the encoder is dropped, too. Raises `CheckpointMismatchError` for half of a weight norm.
    """
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    named = {name: tensor for name, tensor in named.items() if not name.endswith(_TRAINING)}
    if not encodes:
        named = {name: tensor for name, tensor in named.items() if not name.startswith(_ENCODER)}
    return fold_weight_norm(named, source)


def can_encode(tensors: Mapping[str, Tensor], prefix: str = "") -> bool:
    """Return whether the file has the encoder."""
    return any(name.startswith(prefix + _ENCODER) for name in tensors)


def build_encodec(
    config: EncodecConfig,
    tensors: Mapping[str, Tensor],
    *,
    prefix: str = "",
    encodes: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    source: str,
) -> Encodec:
    """Build the codec from the tensors under `prefix`, without its encoder unless `encodes`.

    Both networks have `dtype`, the codebooks fp32. Raises `CheckpointMismatchError` naming `source` and the tensors
    where config and weights contradict each other.
    """
    if encodes and not can_encode(tensors, prefix):
        raise CheckpointMismatchError(f"{source} has no encoder; it can decode only")
    with skeleton():
        codec = Encodec(config, encodes=encodes)
    named = translate(tensors, prefix=prefix, encodes=encodes, source=source)
    fit(codec, named, source=source, dtype=torch.float32, device=device or torch.device("cpu"))
    codec.prepare(dtype)
    return codec


def check(config: EncodecConfig, tensors: Mapping[str, Tensor], *, prefix: str = "", source: str = "the codec") -> None:
    """Raise `CheckpointMismatchError` unless the tensors under `prefix` fit `config`; shapes are enough."""
    encodes = can_encode(tensors, prefix)
    with skeleton():
        codec = Encodec(config, encodes=encodes)
    check_fit(codec, translate(tensors, prefix=prefix, encodes=encodes, source=source), source=source)
