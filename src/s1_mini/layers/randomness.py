"""Random numbers of a request, independent of the rest of its batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def uniforms(seed: int, piece: int, frames: int, samples: int) -> Tensor:
    """Return the random numbers in [0, 1) of one sentence piece of a request: [frames, samples] fp32.

    The generator is counter-based (Philox, Salmon et al. 2011), with the seed and the piece as its key. A frame
    therefore gets the same numbers for any number of `frames`, in any batch, and on every device.
    """
    return torch.from_numpy(_generator(seed, piece).random((frames, samples), dtype=np.float32))


def random_bytes(seed: int, piece: int, block: int, frames: int, samples: int) -> Tensor:
    """Return random bytes, uint8 [frames, samples], from the same generator, for uses that need many coarse numbers.

    Frames can be sampled block by block as they are needed; each block has its own numbers.
    """
    count = frames * samples
    words = np.random.Philox(key=_key(seed, piece), counter=block << 192).random_raw(-(-count // 8))
    return torch.from_numpy(words.view(np.uint8)[:count]).view(frames, samples)


def _generator(seed: int, piece: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=_key(seed, piece)))


def _key(seed: int, piece: int) -> int:
    return (piece << 64) | seed
