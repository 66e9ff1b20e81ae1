"""Fold weight norm, which comes in two spellings: w = g · v / ‖v‖ (Salimans & Kingma 2016).

The norm is over all axes but the first, for transposed convolutions too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from s1_mini.exceptions import CheckpointMismatchError

_SPELLINGS = ((".weight_g", ".weight_v"), (".parametrizations.weight.original0", ".parametrizations.weight.original1"))


def fold_weight_norm(tensors: Mapping[str, Tensor], what: str = "codec weights") -> dict[str, Tensor]:
    """Replace both tensors of each weight norm by the one that they mean. Idempotent.

    Raises `CheckpointMismatchError` naming `what` for half a pair, or one that does not fit together.
    """
    named = dict(tensors)
    for scale_suffix, direction_suffix in _SPELLINGS:
        for name in [name for name in named if name.endswith((scale_suffix, direction_suffix))]:
            stem = name.removesuffix(scale_suffix).removesuffix(direction_suffix)
            other = stem + (direction_suffix if name.endswith(scale_suffix) else scale_suffix)
            if name not in named:
                continue  # the other of the two came first
            if other not in named:
                raise CheckpointMismatchError(f"{what} have {name} but no {other}")
            if f"{stem}.weight" in named:
                raise CheckpointMismatchError(f"{what} have {name} and {stem}.weight, which is the same twice")
            scale, direction = named.pop(stem + scale_suffix), named.pop(stem + direction_suffix)
            named[f"{stem}.weight"] = _fold(stem, scale, direction, what)
    return named


def folded_name(name: str) -> str:
    """Return the name of the tensor that the two of a weight norm become, any other name as it is."""
    suffix = next((suffix for pair in _SPELLINGS for suffix in pair if name.endswith(suffix)), None)
    return name if suffix is None else name.removesuffix(suffix) + ".weight"


def _fold(stem: str, scale: Tensor, direction: Tensor, what: str) -> Tensor:
    if direction.dim() < 2 or scale.shape != (len(direction), *[1] * (direction.dim() - 1)):
        raise CheckpointMismatchError(
            f"{what}: the scale of {stem} has shape {tuple(scale.shape)}, its direction {tuple(direction.shape)}"
        )
    if direction.is_meta:  # asked for shapes only; arithmetic on none would have torch load sympy
        return direction
    norm = torch.linalg.vector_norm(direction.float(), dim=tuple(range(1, direction.dim())), keepdim=True)
    return (direction.float() * (scale.float() / norm)).to(direction.dtype)
