"""Average the weights of several decoders, kept from one training, into one codec.

python -m recipes.voice.average --codec A.safetensors --codec B.safetensors … --output build/work/codec.safetensors

The mean of weights is often better than each of them (Izmailov et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.voice.shared import parser


def average(codecs: Sequence[Path], output: Path) -> None:
    """Write the mean of the tensors of all files. Raises `ValueError` if these have different names or shapes."""
    first, *others = files = [load_file(path) for path in codecs]
    shapes = {name: tensor.shape for name, tensor in first.items()}
    for path, file in zip(codecs[1:], others, strict=True):
        if {name: tensor.shape for name, tensor in file.items()} != shapes:
            raise ValueError(f"{path} has other tensors than {codecs[0]}")
    save_file({name: _mean([file[name] for file in files]) for name in first}, output)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    if all(torch.equal(tensor, tensors[0]) for tensor in tensors):
        return tensors[0]  # the mean of equal numbers may differ by rounding, and so may the encoder's codes
    return torch.stack([tensor.float() for tensor in tensors]).mean(0).to(tensors[0].dtype)


if __name__ == "__main__":
    command = parser(__doc__, output=Path)
    command.add_argument("--codec", type=Path, action="append", required=True)
    given = command.parse_args()
    average(given.codec, given.output)
