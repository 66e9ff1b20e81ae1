"""Encoded speech as segments of prompts: what the dual-AR model learns from.

Utterances stand one after the other as the engine writes them into a prompt (speaker tag, text, frames, end): `main`
int32 [T], `codes` int16 [K, T], `lengths` int32 [n] in tokens, `speaker` int32 [n]. Needs the codec's encoding half
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s1_mini.families.s1.prompt import SPEAKER
from s1_mini.families.s1.tokenizer import S1Tokenizer

ROWS = 32  # utterances encoded at once, sorted by length so that little is padding
STEP = 16  # frames; there are few lengths, since every new one costs a GPU a tenth of a second


class Coded(NamedTuple):
    """One utterance."""

    speaker: int
    text: str
    codes: NDArray[np.int16]  # [K, F]


class Encoder(Protocol):
    """What encodes rows of samples."""

    device: torch.device
    samples_per_frame: int

    def encode_rows(self, waves: Tensor) -> Tensor:
        """Encode waves [B, T] to codes [B, K, F]."""


def encode(codec: Encoder, waves: list[NDArray[np.int16]]) -> list[NDArray[np.int16]]:
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
