"""Resume training from the built-in voice, with its weights as they were before the export.

python -m recipes.voice.again --checkpoint src/s1_mini/default_model --work DIR [--size SIZE]

Dequantizes the weights, undoes the scaling of the export, and removes the export's drive and ceiling from the codec's
config. `codec.py decoder` and `model.py` then continue from `DIR` with fresh optimisers, and `tokens.py` uses
the codec. With `--size`, the codec gets a decoder of this size in `sizes.py` with random weights; `codec.py decoder`
trains it, and the codes stay the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.voice.codec import initialise
from recipes.voice.export import BOUND, COLDER
from recipes.voice.shared import parser
from recipes.voice.sizes import CODECS
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.weights.int8 import all_dequantized

FILES = ("model.safetensors", "codec.safetensors")


def begin(checkpoint: Path, work: Path, size: str | None = None) -> None:
    """Write the weights of `checkpoint` to `work` as the trainings read them, in float32."""
    work.mkdir(parents=True, exist_ok=True)
    model, codec = (_read(checkpoint / name) for name in FILES)
    for name, factor in COLDER.items():
        if name in model:
            model[name] = model[name] / factor
    config = json.loads((checkpoint / "codec_config.json").read_text())
    trained = {name: value for name, value in config.items() if name not in BOUND}
    if size:
        trained, codec = CODECS[size], with_new_decoder(codec, size)
    for name, tensors in zip(FILES, (model, codec), strict=True):
        save_file(tensors, work / name)
    (work / "codec_config.json").write_text(json.dumps(trained, indent=2), encoding="utf-8")


def with_new_decoder(codec: dict[str, Tensor], size: str) -> dict[str, Tensor]:
    """Return the weights of `codec`, with those of a random decoder of the given size in `sizes.py`."""
    torch.manual_seed(0)
    new = Dac(DacConfig.from_json(CODECS[size]))
    initialise(new)
    return {
        name: tensor.contiguous() if name.startswith("decoder.") else codec[name]
        for name, tensor in new.state_dict().items()
    }


def _read(path: Path) -> dict[str, Tensor]:
    return {name: tensor.float().contiguous() for name, tensor in all_dequantized(load_file(path), path.name).items()}


if __name__ == "__main__":
    given = parser(__doc__, checkpoint=Path, work=Path, size=str | None).parse_args()
    begin(given.checkpoint, given.work, given.size)
