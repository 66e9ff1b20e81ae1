"""Encode all speech with the finished codec: what the dual-AR model learns from.

python -m training.tokens --work DIR

Reads `DIR/speech` and `DIR/codec.safetensors`; writes `DIR/tokens.npz`: `codes` uint16 [books, frames of all
utterances], `frames` int32 [n], `text` uint8 (UTF-8), `text_lengths` int32 [n], `speaker` int32 [n], in the order of
the shards, so that one speaker's utterances stand together.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac

ROWS = 128  # utterances encoded at once, sorted by length so that little is padding


def encode_shard(codec: Dac, samples: np.ndarray, lengths: np.ndarray, device: torch.device) -> list[np.ndarray]:
    """Codes [books, frames] of every utterance of one shard."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    order = np.argsort(lengths)
    codes: list[np.ndarray] = [np.zeros(0)] * len(lengths)
    wave = torch.from_numpy(samples).to(device)
    for begin in range(0, len(order), ROWS):
        rows = order[begin : begin + ROWS]
        longest = -(-int(lengths[rows[-1]]) // codec.samples_per_frame) * codec.samples_per_frame
        waves = torch.zeros(len(rows), longest, device=device)
        for row, index in enumerate(rows):
            length = int(lengths[index])
            waves[row, :length] = wave[int(starts[index]) : int(starts[index]) + length].float() / 32768
        encoded = codec.encode_rows(waves).cpu().numpy().astype(np.uint16)
        for row, index in enumerate(rows):
            codes[index] = encoded[row, :, : -(-int(lengths[index]) // codec.samples_per_frame)]
    return codes


@torch.inference_mode()
def encode_all(work: Path, device: torch.device) -> None:
    """Encode every shard there is."""
    codec = open_dac(work, encodes=True, device=device)
    parts: dict[str, list[np.ndarray]] = {"codes": [], "frames": [], "text": [], "text_lengths": [], "speaker": []}
    began = time.monotonic()
    for path in sorted((work / "speech").glob("shard_*.npz")):
        with np.load(path) as shard:
            codes = encode_shard(codec, shard["samples"], shard["lengths"], device)
            for name in ("text", "text_lengths", "speaker"):
                parts[name].append(shard[name])
        parts["codes"].extend(codes)
        parts["frames"].append(np.array([c.shape[1] for c in codes], np.int32))
    joined: dict[str, Any] = {name: np.concatenate(part, axis=-1) for name, part in parts.items()}
    np.savez(work / "tokens.tmp.npz", **joined)
    (work / "tokens.tmp.npz").replace(work / "tokens.npz")
    hours = joined["frames"].sum() / 25 / 3600
    print(f"encoded {len(joined['frames'])} utterances, {hours:.1f} h, in {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    """Encode on the best device there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encode_all(parser.parse_args().work, device)


if __name__ == "__main__":
    main()
