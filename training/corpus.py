"""Encoded utterances on the device, which become prompts of several utterances of one speaker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PER_GROUP = 8  # utterances of one speaker, of which a prompt is made


class Corpus:
    """Segments of prompts (`tokens.py`), grouped by speaker; grows while shards appear in `directory`."""

    def __init__(
        self,
        directory: Path,
        chosen: Callable[[str], bool],
        *,
        interleave: int,
        num_books: int,
        max_tokens: int,
        device: torch.device,
    ) -> None:
        self._directory, self._chosen, self._interleave = directory, chosen, interleave
        self._read: set[str] = set()
        self._main = torch.empty(max_tokens, dtype=torch.int32, device=device)
        self._codes = torch.empty(num_books, max_tokens, dtype=torch.int16, device=device)
        max_groups = max_tokens // 256
        self._starts = torch.zeros(max_groups, PER_GROUP, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(max_groups, PER_GROUP, dtype=torch.int64, device=device)  # 0: no utterance
        self._end = torch.zeros((), dtype=torch.float64, device=device)  # groups; read inside captured steps
        self.num_tokens = self.num_groups = self.num_utterances = 0

    def refill(self, max_shards: int = 64) -> None:
        """Read shards that are new, while there is room."""
        names = {path.name for path in self._directory.glob("shard_*.npz") if self._chosen(path.name)}
        for name in sorted(names - self._read)[:max_shards]:
            with np.load(self._directory / name) as shard:
                groups = _grouped(shard["speaker"], shard["lengths"])
                main, codes = torch.from_numpy(shard["main"]), torch.from_numpy(shard["codes"])
            first, end = self.num_tokens, self.num_tokens + len(main)
            last = self.num_groups + len(groups[0])
            self._read.add(name)
            if end > len(self._main) or last > len(self._starts):
                continue  # there is no room for it
            self._main[first:end] = main.to(self._main.device)
            self._codes[:, first:end] = codes.to(self._codes.device)
            self._starts[self.num_groups : last] = torch.from_numpy(groups[0]).to(self._starts.device) + first
            self._lengths[self.num_groups : last] = torch.from_numpy(groups[1]).to(self._lengths.device)
            self.num_tokens, self.num_groups = end, last
            self.num_utterances += int((groups[1] > 0).sum())
        self._end.fill_(self.num_groups)

    def random_groups(self, rows: int) -> Tensor:
        """Draw groups [rows]; safe inside a captured step."""
        return (torch.rand(rows, dtype=torch.float64, device=self._end.device) * self._end).long()

    def windows(self, groups: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Prompts of these groups, utterances in random order: columns [B, K + 1, T] and which are there [B, T]."""
        starts, lengths = self._starts[groups], self._lengths[groups]
        order = torch.rand(lengths.shape, device=lengths.device).argsort(-1)
        starts, lengths = starts.gather(1, order), lengths.gather(1, order)
        ends = lengths.cumsum(-1)
        position = torch.arange(columns - 1, device=ends.device)
        segment = (position.view(1, -1, 1) >= ends.unsqueeze(1)).sum(-1)  # segments that end at or before it
        there = segment < PER_GROUP
        segment = segment.clamp_max(PER_GROUP - 1)
        index = starts.gather(1, segment) + position - (ends - lengths).gather(1, segment)
        index = torch.where(there, index, 0)
        body = torch.cat((self._main[index].long().unsqueeze(1), self._codes[:, index].transpose(0, 1).long()), dim=1)
        first = torch.zeros_like(body[:, :, :1])
        first[:, 0] = self._interleave
        return torch.cat((first, body), dim=-1), F.pad(there, (1, 0), value=True)


def _grouped(speaker: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths [groups, PER_GROUP] of the utterances of each speaker, who follow one another."""
    begins = np.cumsum(lengths) - lengths
    speakers = np.split(np.arange(len(speaker)), np.flatnonzero(np.diff(speaker)) + 1)
    groups = [part for one in speakers for part in np.split(one, range(PER_GROUP, len(one), PER_GROUP))]
    table = np.zeros((2, len(groups), PER_GROUP), np.int64)
    for row, group in enumerate(groups):
        table[:, row, : len(group)] = begins[group], lengths[group]
    return table[0], table[1]
