"""Encode speech with the finished codec as segments of prompts: what the dual-AR model learns from.

python -m training.tokens --work DIR [--follow SECONDS]

For every shard in `DIR/speech` that has none yet, writes one of the same name to `DIR/tokens`, where the utterances
stand one after the other as the engine writes them into a prompt (speaker tag, text, frames, end): `main` int32 [T],
`codes` int16 [K, T], `lengths` int32 [n] in tokens, `speaker` int32 [n]. Needs the codec's encoding half alone, so the
decoder may still be in training (`decoder.py`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.prompt import SPEAKER
from s1_mini.families.s1.tokenizer import S1Tokenizer
from training.speech import Utterance, read_shard
from training.vocabulary import write_vocabulary

ROWS = 32  # utterances encoded at once, sorted by length so that little is padding
STEP = 16  # frames; there are few lengths, since every new one costs a GPU a tenth of a second
POLL_S = 1.0


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


def as_segments(utterances: list[Utterance], codes: list[NDArray[np.int16]], tokenizer: S1Tokenizer) -> dict[str, Any]:
    """Write the utterances one after the other as the parts of a prompt; the arrays of a shard."""
    tag, end = tokenizer.encode(SPEAKER), tokenizer.control("im_end")
    main: list[NDArray[np.int32]] = []
    books: list[NDArray[np.int16]] = []
    for utterance, frames in zip(utterances, codes, strict=True):
        head = tag + tokenizer.encode(utterance.text)
        semantic = frames[0].astype(np.int32) + tokenizer.semantic_begin
        main.append(np.concatenate((head, semantic, [end])).astype(np.int32))
        books.append(np.pad(frames, ((0, 0), (len(head), 1))))
    return {
        "main": np.concatenate(main),
        "codes": np.concatenate(books, axis=1),
        "lengths": np.array([len(segment) for segment in main], np.int32),
        "speaker": np.array([utterance.speaker for utterance in utterances], np.int32),
    }


@torch.inference_mode()
def encode_shards(work: Path, device: torch.device, *, follow_s: float) -> int:
    """Encode all shards there are, then those that appear within `follow_s` seconds; give how many."""
    write_vocabulary(work)
    tokenizer = S1Tokenizer.from_directory(work)
    codec = open_dac(work, encodes=True, device=device)
    (work / "tokens").mkdir(exist_ok=True)
    began, count = time.monotonic(), 0
    while True:
        new = [path for path in sorted((work / "speech").glob("shard_*.npz")) if not _target(work, path).exists()]
        for path in new:
            utterances = read_shard(path)
            codes = encode(codec, [np.asarray(utterance.samples) for utterance in utterances])
            unfinished = work / "tokens" / f"{path.stem}.tmp"
            with unfinished.open("wb") as file:
                np.savez(file, **as_segments(utterances, codes, tokenizer))
            unfinished.replace(_target(work, path))
            count += 1
            if count % 100 == 0:
                print(f"tokens: {count} shards in {time.monotonic() - began:.0f} s", flush=True)
        if time.monotonic() - began > follow_s:
            return count
        if not new:
            time.sleep(POLL_S)


def _target(work: Path, shard: Path) -> Path:
    return work / "tokens" / shard.name


def main() -> None:
    """Encode on the best device there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--follow", type=float, default=0.0, help="seconds to wait for more shards")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = encode_shards(options.work, device, follow_s=options.follow)
    print(f"tokens: {count} shards encoded", flush=True)


if __name__ == "__main__":
    main()
