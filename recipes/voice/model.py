"""Train the dual-AR model on the codes of the natural voice's codec, on all GPUs; resumable by seconds.

python -m recipes.voice.model --work DIR [--size quick] [--seconds 540] …

As `training/model.py`, whose options it has, with the sizes of `sizes.py`. Start one process for each GPU (`run.py`
tells how they find each other) and every step is of all their batches.
"""

from __future__ import annotations

from recipes.voice.sizes import MODELS
from training.model import arguments, train

HELD_BACK = "shard_held_00000.npz"  # for validation: texts and speakers that are in no other


def main() -> None:
    """Train for some seconds."""
    parser = arguments(__doc__)
    parser.add_argument("--size", choices=MODELS, default="quick")
    options = parser.parse_args()
    train(options, MODELS[options.size], HELD_BACK)


if __name__ == "__main__":
    main()
