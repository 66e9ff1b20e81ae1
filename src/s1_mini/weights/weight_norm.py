"""Replace weight norm (Salimans & Kingma 2016) by plain weights, or plain weights by weight norm: w = g · v / ‖v‖.

The tensors g and v may have torch's old names or its new names. The norm is over all axes except the first, also for
transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from s1_mini.exceptions import CheckpointMismatchError

# Names of g and v after the name of the layer: torch's old names and its new names.
OLD = (".weight_g", ".weight_v")
NEW = (".parametrizations.weight.original0", ".parametrizations.weight.original1")
_SPELLINGS = (OLD, NEW)


def fold_weight_norm(tensors: Mapping[str, Tensor], what: str = "codec weights") -> dict[str, Tensor]:
    """Replace the two tensors of each weight norm by the plain weight. Tensors without weight norm stay as they are.

    Raises `CheckpointMismatchError`, naming `what`, for incomplete or inconsistent pairs.
    """
    named = dict(tensors)
    for pair in _SPELLINGS:
        stems = [name.removesuffix(suffix) for name in named for suffix in pair if name.endswith(suffix)]
        for stem in dict.fromkeys(stems):
            scale, direction = (stem + suffix for suffix in pair)
            for one, other in ((scale, direction), (direction, scale)):
                if other not in named:
                    raise CheckpointMismatchError(f"{what} have {one} but no {other}")
            if f"{stem}.weight" in named:
                raise CheckpointMismatchError(f"{what} have both {scale} and {stem}.weight, which are redundant")
            named[f"{stem}.weight"] = _fold(stem, named.pop(scale), named.pop(direction), what)
    return named


def unfolded(layer: str, weight: Tensor, names: tuple[str, str]) -> dict[str, Tensor]:
    """Return the two tensors of weight norm for a plain weight; `names` is `OLD` or `NEW`."""
    scale, direction = names
    return {layer + scale: _norm(weight), layer + direction: weight}


def _fold(stem: str, scale: Tensor, direction: Tensor, what: str) -> Tensor:
    if direction.dim() < 2 or scale.shape != (len(direction), *[1] * (direction.dim() - 1)):
        raise CheckpointMismatchError(
            f"{what}: the scale of {stem} has shape {tuple(scale.shape)}, which does not match its direction "
            f"{tuple(direction.shape)}"
        )
    if direction.is_meta:  # only shapes are needed; arithmetic on meta tensors would load sympy
        return direction
    return (direction.float() * (scale.float() / _norm(direction.float()))).to(direction.dtype)


def _norm(weight: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.dim())), keepdim=True)
    return norm
