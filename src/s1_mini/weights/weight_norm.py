"""Replace weight norm (Salimans & Kingma 2016) by plain weights: w = g · v / ‖v‖.

The tensors g and v may have torch's old names or its new names. The norm is over all axes except the first, also for
transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from s1_mini.exceptions import CheckpointMismatchError

_SPELLINGS = ((".weight_g", ".weight_v"), (".parametrizations.weight.original0", ".parametrizations.weight.original1"))


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


def folded_name(name: str) -> str:
    """Return the name of the plain weight that a weight norm's tensor becomes. Other names are returned unchanged."""
    suffix = next((suffix for pair in _SPELLINGS for suffix in pair if name.endswith(suffix)), None)
    return name if suffix is None else name.removesuffix(suffix) + ".weight"


def _fold(stem: str, scale: Tensor, direction: Tensor, what: str) -> Tensor:
    if direction.dim() < 2 or scale.shape != (len(direction), *[1] * (direction.dim() - 1)):
        raise CheckpointMismatchError(
            f"{what}: the scale of {stem} has shape {tuple(scale.shape)}, which does not match its direction "
            f"{tuple(direction.shape)}"
        )
    if direction.is_meta:  # only shapes are needed; arithmetic on meta tensors would load sympy
        return direction
    norm = torch.linalg.vector_norm(direction.float(), dim=tuple(range(1, direction.dim())), keepdim=True)
    return (direction.float() * (scale.float() / norm)).to(direction.dtype)
