"""Encode the teacher's speech with the finished codec, and put the utterances of each speaker together.

python -m recipes.voice.tokens --work DIR --phonemes FILE [--follow SECONDS] [--part K --parts N]

Speech must be made with `--per-speaker 8`: a speaker's utterances come in any order, spread over the shards of one
maker. They are kept until all eight are there, and written to `DIR/tokens` as `training/tokens.py` writes them. The
texts are as they are read aloud. Several processes may share the work: each takes the shards of its own makers.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.tokenizer import S1Tokenizer
from training.corpus import PER_GROUP
from training.speech import Utterance
from training.texts import spoken
from training.tokens import as_segments, encode
from training.vocabulary import write_vocabulary

PER_SHARD = 512  # utterances
POLL_S = 1.0
NOTHING = np.zeros(0, np.int16)  # what was encoded is not kept

Coded = tuple[Utterance, NDArray[np.int16]]


class Speakers:
    """Encoded utterances that wait for the others of their speaker, and shards of those that need not."""

    def __init__(self, output: Path, name: str, tokenizer: S1Tokenizer) -> None:
        self._output, self._name, self._tokenizer = output, name, tokenizer
        self._waiting: dict[int, list[Coded]] = defaultdict(list)
        self._ready: list[Coded] = []
        self.num_shards = 0

    def add(self, utterance: Utterance, codes: NDArray[np.int16]) -> None:
        """Take one utterance; write a shard if that completes one."""
        waiting = self._waiting[utterance.speaker]
        waiting.append((utterance, codes))
        if len(waiting) == PER_GROUP:
            self._ready += self._waiting.pop(utterance.speaker)
            if len(self._ready) >= PER_SHARD:
                self._write()

    def finish(self) -> None:
        """Write what is left, speakers with fewer utterances too."""
        for speaker in sorted(self._waiting):
            self._ready += self._waiting[speaker]
        self._waiting.clear()
        if self._ready:
            self._write()

    def _write(self) -> None:
        utterances, codes = zip(*self._ready, strict=True)
        target = self._output / f"shard_{self._name}_{self.num_shards:05d}.npz"
        with target.with_suffix(".tmp").open("wb") as file:
            np.savez(file, **as_segments(list(utterances), list(codes), self._tokenizer))
        target.with_suffix(".tmp").replace(target)
        self._ready = []
        self.num_shards += 1


def read_texts(phonemes: Path) -> list[str]:
    """The texts of what `phonemes.py` wrote, as they are read aloud."""
    return [spoken(line[0]) for line in json.loads(lzma.decompress(phonemes.read_bytes()))]


@torch.inference_mode()
def encode_speech(
    work: Path, phonemes: Path, device: torch.device, *, follow_s: float = 0.0, part: int = 0, parts: int = 1
) -> int:
    """Encode all shards of this part's makers, then those that appear within `follow_s` seconds; give how many."""
    write_vocabulary(work)
    codec, texts = open_dac(work, encodes=True, device=device), read_texts(phonemes)
    (work / "tokens").mkdir(exist_ok=True)
    speakers = Speakers(work / "tokens", f"{part:02d}", S1Tokenizer.from_directory(work))
    began, read = time.monotonic(), set[Path]()
    while True:
        found = [path for path in sorted((work / "speech").glob("shard_*.npz")) if path not in read]
        new = [path for path in found if int(path.stem.split("_")[1]) % parts == part]
        for path in new:
            read.add(path)
            with np.load(path) as shard:
                waves = np.split(shard["samples"], np.cumsum(shard["lengths"])[:-1])
                said, who = shard["text"].tolist(), shard["speaker"].tolist()
            for codes, text, speaker in zip(encode(codec, waves), said, who, strict=True):
                speakers.add(Utterance(texts[text], NOTHING, speaker), codes)
        if time.monotonic() - began > follow_s:
            speakers.finish()
            return len(read)
        if not new:
            time.sleep(POLL_S)


def main() -> None:
    """Encode on the best device there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--phonemes", type=Path, required=True)
    parser.add_argument("--follow", type=float, default=0.0, help="seconds to wait for more shards")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.monotonic()
    count = encode_speech(
        options.work, options.phonemes, device, follow_s=options.follow, part=options.part, parts=options.parts
    )
    print(f"tokens {options.part}: {count} shards of speech in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
