"""The data of the dual-AR model: its vocabulary, encoded speech as segments of prompts, and random prompts of them.

The vocabulary has single bytes, the pieces of the speaker tag, S1's control tokens and semantic tokens. Bytes are
enough for a language that is only read aloud; the tag is merged so that it costs five tokens.

A shard holds utterances one after the other as the engine writes them into a prompt (speaker tag, text, frames, end):
`main` int32 [T], `codes` int16 [K, T], `lengths` int32 [n] in tokens, `speaker` int32 [n].
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from s1_mini.families.s1.prompt import SPEAKER
from s1_mini.families.s1.random import CONTROL_TOKENS
from s1_mini.families.s1.tokenizer import S1Tokenizer

ROWS = 32  # utterances encoded at once, sorted by length so that little is padding
STEP = 16  # frames; there are few lengths, since every new one costs a GPU a tenth of a second
PER_GROUP = 8  # utterances of one speaker, of which a prompt is made
NUM_SEMANTIC = 1024
MERGED = ("<|", "|>", "sp", "spe", "spea", "speak", "speake", "speaker")
PIECES = [bytes([value]) for value in range(256)] + [text.encode() for text in MERGED]  # of text, by token


def write_vocabulary(directory: Path) -> int:
    """Write `tokenizer.tiktoken` and `special_tokens.json`; give the size of the model's vocabulary.

    Several processes may do so at once, while others read.
    """
    lines = (f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(PIECES))
    _replace(directory / "tokenizer.tiktoken", "".join(lines))
    names = [f"<|{name}|>" for name in CONTROL_TOKENS] + [f"<|semantic:{i}|>" for i in range(NUM_SEMANTIC)]
    special = {name: len(PIECES) + index for index, name in enumerate(names)}
    _replace(directory / "special_tokens.json", json.dumps(special) + "\n")
    return len(PIECES) + len(names)


def _replace(path: Path, text: str) -> None:
    """Write a file whole, so that no reader sees half of it."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, encoding="ascii")
    temporary.replace(path)


class Coded(NamedTuple):
    """One utterance."""

    speaker: int
    text: str
    codes: NDArray[np.int16]  # [K, F]


class Encoder(Protocol):
    """An encoder of rows of samples."""

    device: torch.device
    samples_per_frame: int

    def encode_rows(self, waves: Tensor) -> Tensor:
        """Encode waves [B, T] to codes [B, K, F]."""


def encode_waves(codec: Encoder, waves: list[NDArray[np.int16]]) -> list[NDArray[np.int16]]:
    """Codes [K, F] of every int16 wave [samples], as if each were encoded by itself."""
    order = sorted(range(len(waves)), key=lambda index: len(waves[index]))
    codes: dict[int, NDArray[np.int16]] = {}
    step = STEP * codec.samples_per_frame
    for begin in range(0, len(order), ROWS):
        rows = order[begin : begin + ROWS]
        padded = np.zeros((ROWS, -(-len(waves[rows[-1]]) // step) * step), np.int16)
        for row, index in enumerate(rows):
            padded[row, : len(waves[index])] = waves[index]
        encoded = codec.encode_rows(torch.from_numpy(padded).to(codec.device).float() / 32768)
        for index, frames in zip(rows, encoded[: len(rows)].cpu().numpy().astype(np.int16), strict=True):
            codes[index] = frames[:, : -(-len(waves[index]) // codec.samples_per_frame)]
    return [codes[index] for index in range(len(waves))]


def as_segments(said: Sequence[Coded], tokenizer: S1Tokenizer) -> dict[str, Any]:
    """Write utterances one after the other as the parts of a prompt; the arrays of a shard."""
    tag, end = tokenizer.encode(SPEAKER), tokenizer.control("im_end")
    main: list[NDArray[np.int32]] = []
    books: list[NDArray[np.int16]] = []
    for _, text, frames in said:
        head = tag + tokenizer.encode(text)
        semantic = frames[0].astype(np.int32) + tokenizer.semantic_begin
        main.append(np.concatenate((head, semantic, [end])).astype(np.int32))
        books.append(np.pad(frames, ((0, 0), (len(head), 1))))
    return {
        "main": np.concatenate(main),
        "codes": np.concatenate(books, axis=1),
        "lengths": np.array([len(segment) for segment in main], np.int32),
        "speaker": np.array([one.speaker for one in said], np.int32),
    }


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
