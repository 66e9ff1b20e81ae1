"""Speech on the device: shards are read once, batches are random slices of everything read so far."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class SpeechPool:
    """One long wave made of all utterances, which grows while shards appear in `directory`."""

    def __init__(self, directory: Path, *, max_samples: int, device: torch.device) -> None:
        self._directory = directory
        self.part, self.parts = 0, 1  # of several processes, each reads its own share of the shards
        self._read: set[Path] = set()
        self._wave = torch.zeros(max_samples, dtype=torch.int16, device=device)
        self._filled = 0
        self._end = torch.zeros((), dtype=torch.float64, device=device)  # read inside captured steps

    @property
    def num_samples(self) -> int:
        """Samples read so far."""
        return self._filled

    def refill(self, max_shards: int = 64) -> None:
        """Read shards that are new, while there is room."""
        found = (path for path in sorted(self._directory.glob("shard_*.npz")) if path not in self._read)
        new = [path for path in found if sha256(path.name.encode()).digest()[0] % self.parts == self.part]
        for path in new[:max_shards]:
            self._read.add(path)
            with np.load(path) as shard:
                samples = torch.from_numpy(shard["samples"])
            room = len(self._wave) - self._filled
            if room < len(samples):
                return
            self._wave[self._filled : self._filled + len(samples)] = samples.to(self._wave.device)
            self._filled += len(samples)
            self._end.fill_(self._filled)

    def wait(self, min_samples: int, max_wait_s: float) -> None:
        """Wait until there are so many samples to begin with; raises `SystemExit` if they do not come in time."""
        began = time.monotonic()
        while self.num_samples < min_samples:
            if time.monotonic() - began > max_wait_s:
                raise SystemExit(f"too little speech came into {self._directory} within {max_wait_s:.0f} s")
            self.refill()
            time.sleep(0.2)

    def batch(self, rows: int, length: int) -> Tensor:
        """Give `rows` random slices [rows, 1, length], float in [-1, 1]; safe inside a captured step."""
        device = self._wave.device
        start = torch.rand(rows, 1, dtype=torch.float64, device=device) * (self._end - length)
        index = start.long() + torch.arange(length, device=device)
        return (self._wave[index].float() / 32768).unsqueeze(1)
