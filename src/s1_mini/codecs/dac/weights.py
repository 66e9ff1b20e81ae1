"""Translate the published tensor names of a DAC checkpoint, and load the tensors strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.codecs.dac.config import DacConfig, read_dac_config
from s1_mini.codecs.dac.model import Dac
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.directory import find_tensors
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import check_fit, fit, skeleton, strip_prefix
from s1_mini.weights.weight_norm import fold_weight_norm

_BUFFERS = ("freqs_cis", "causal_mask")  # computed instead of loaded; the masks of S1-mini alone take 302 MB
_ENCODING = ("encoder.", "quantizer.pre_module.", "quantizer.downsample.")


def translate(tensors: Mapping[str, Tensor], *, encodes: bool = True) -> dict[str, Tensor]:
    """Return tensors with the names of `Dac`: prefix removed, buffers dropped, weight norm replaced by plain weights.

    Translated tensors are returned unchanged. With `encodes=False`, encoder weights are dropped too. Raises
    `CheckpointMismatchError` for an incomplete weight norm.
    """
    named = strip_prefix(tensors, "generator.")
    named = {name: tensor for name, tensor in named.items() if not name.endswith(_BUFFERS)}
    if not encodes:
        named = {name: tensor for name, tensor in named.items() if not _is_encoding(name)}
    return fold_weight_norm(named)


def can_encode(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the file has encoder weights."""
    return any(_is_encoding(name.removeprefix("generator.")) for name in tensors)


def _is_encoding(name: str) -> bool:
    return name.startswith(_ENCODING) or ".in_proj." in name


def build_codec(
    config: DacConfig,
    tensors: Mapping[str, Tensor],
    *,
    encodes: bool,
    dtype: torch.dtype,
    device: torch.device,
    source: str,
) -> Dac:
    """Build the codec, with its encoder only if `encodes`.

    Raises `CheckpointMismatchError` if config and weights contradict each other, or if encoder weights are missing.
    """
    if encodes and not can_encode(tensors):
        raise CheckpointMismatchError(
            f"{source} has no encoder weights, so it cannot encode a reference; name a voice, or convert the "
            "checkpoint without --decode-only"
        )
    # The encoder is checked even if it is not built; otherwise, the first reference would reveal its faults.
    shapes = {name: tensor.to("meta") for name, tensor in tensors.items()}
    check(config, translate(shapes, encodes=can_encode(tensors)), encodes=can_encode(tensors), source=source)
    codec = skeleton(lambda: Dac(config, encodes=encodes))
    fit(codec, translate(tensors, encodes=encodes), source=source, dtype=dtype, device=device)
    codec.prepare()
    return codec


def check(config: DacConfig, named: Mapping[str, Tensor], *, encodes: bool, source: str = "the codec") -> None:
    """Raise `CheckpointMismatchError` unless the tensors from `translate` fit `config`."""
    check_fit(skeleton(lambda: Dac(config, encodes=encodes)), named, source=source)


def open_dac(
    directory: Path,
    config: DacConfig | None = None,
    *,
    encodes: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Dac:
    """Open the codec of a checkpoint directory; its sizes are read unless given. Raises `CheckpointError`."""
    path = find_tensors(directory, "codec")
    return build_codec(
        config or read_dac_config(directory),
        read_tensors(path),
        encodes=encodes,
        dtype=dtype,
        device=device or torch.device("cpu"),
        source=path.name,
    )
