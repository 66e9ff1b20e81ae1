"""Resume training from the built-in voice, with its weights as they were before the export.

python -m recipes.voice.again --checkpoint src/s1_mini/default_model --work DIR

Dequantizes the weights, undoes the scaling of the export, and removes the export's drive, ceiling and encoder id from
the codec's config. `codec.py decoder` and `model.py` then continue from `DIR` with fresh optimisers, and
`tokens.py` uses the codec.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.voice.export import BOUND, COLDER
from recipes.voice.shared import parser
from s1_mini.weights.int8 import dequantized, without_scales

FILES = ("model.safetensors", "codec.safetensors")


def begin(checkpoint: Path, work: Path) -> None:
    """Write the weights of `checkpoint` to `work` in float32, in the form that the training scripts read."""
    work.mkdir(parents=True, exist_ok=True)
    model, codec = (_read(checkpoint / name) for name in FILES)
    model = {name: tensor / COLDER.get(name, 1.0) for name, tensor in model.items()}
    config = json.loads((checkpoint / "codec_config.json").read_text())
    trained = {name: value for name, value in config.items() if name not in {*BOUND, "encoder_id"}}
    for name, tensors in zip(FILES, (model, codec), strict=True):
        save_file(tensors, work / name)
    (work / "codec_config.json").write_text(json.dumps(trained, indent=2), encoding="utf-8")


def _read(path: Path) -> dict[str, Tensor]:
    stored = load_file(path)
    return {name: dequantized(stored, name, torch.float32) for name in without_scales(stored, path.name)}


if __name__ == "__main__":
    given = parser(__doc__, checkpoint=Path, work=Path).parse_args()
    begin(given.checkpoint, given.work)
