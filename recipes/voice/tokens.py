"""Generate speech with the teacher and encode it at once, as the dual-AR model learns it; no audio is kept.

python -m recipes.voice.tokens --work DIR --teacher DIR --phonemes DIR --seconds 300 [--part K --parts N]
    [--held-out FILE] [--beside 4]

`DIR` holds the finished codec. `--phonemes` is what `phonemes.py` wrote, a file or a folder of them, of which each part
takes its share. A speaker says eight texts, which come in any order; when all are there they are written side by side
to `DIR/tokens`, in the form that `corpus.py` reads. The model sees the texts in words, as the engine gives them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.voice.channels import ChannelsLast
from recipes.voice.corpus import PER_GROUP, Coded, as_segments, encode_waves, write_vocabulary
from recipes.voice.speakers import held_out_speakers
from recipes.voice.speech import (
    Count,
    Studio,
    Text,
    Utterance,
    bound_memory,
    heard,
    is_short_enough,
    open_studio,
    recorded,
)
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.tokenizer import S1Tokenizer

PER_SHARD = 512  # utterances
TENS = re.compile(
    r"\b(twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)-(one|two|three|four|five|six|seven|eight|nine)\b", re.I
)


class Speakers:
    """Encoded utterances that wait for the others of their speaker, and shards of those that need not."""

    def __init__(self, output: Path, name: str, tokenizer: S1Tokenizer) -> None:
        self._output, self._name, self._tokenizer = output, name, tokenizer
        self._waiting: dict[int, list[Coded]] = defaultdict(list)
        self._ready: list[Coded] = []
        self.num_shards = 0

    def add(self, speaker: int, text: str, codes: NDArray[np.int16]) -> None:
        """Take one utterance; write a shard if that completes one."""
        waiting = self._waiting[speaker]
        waiting.append(Coded(speaker, text, codes))
        if len(waiting) == PER_GROUP:
            self._ready += self._waiting.pop(speaker)
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
        target = self._output / f"shard_{self._name}_{self.num_shards:05d}.npz"
        with target.with_suffix(".tmp").open("wb") as file:
            np.savez(file, **as_segments(self._ready, self._tokenizer))
        target.with_suffix(".tmp").replace(target)
        self._ready = []
        self.num_shards += 1


class AsTrained:
    """A codec that encodes as it was trained: channels last, by kernels and in half precision on a GPU."""

    def __init__(self, codec: Dac) -> None:
        self.device, self.samples_per_frame = codec.device, codec.samples_per_frame
        self._quantizer, self._halves = codec.quantizer, ChannelsLast(codec, compiles=False)

    def encode_rows(self, waves: Tensor) -> Tensor:
        """Encode waves [B, T], T a whole number of frames, to codes [B, K, F]."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False):
            exact = self._halves.latents(waves.unsqueeze(1))
        return self._quantizer.encode(exact.float())


def written(read: str) -> str:
    """A text in words as the model sees it: not always written with care.

    Every other one writes twenty one without its hyphen, every twentieth has no capitals.
    """
    if len(read) % 2:
        read = TENS.sub(r"\1 \2", read)
    return read.lower() if len(read) % 20 == 7 else read


def read_texts(phonemes: Path, part: int, parts: int) -> tuple[list[str], list[Text]]:
    """Return the texts of this part as the model sees them, and their phonemes, numbered by these."""
    files = sorted(phonemes.glob("*.xz")) if phonemes.is_dir() else [phonemes]
    lines = [line for file in files for line in json.loads(lzma.decompress(file.read_bytes()))][part::parts]
    numbered = [Text(number, american, british) for number, (_, american, british) in enumerate(lines)]
    return [written(line[0]) for line in lines], [text for text in numbered if is_short_enough(text)]


@torch.inference_mode()
def encode(
    made: Iterable[Sequence[Utterance]], said: Sequence[str], codec: AsTrained, speakers: Speakers, name: str
) -> None:
    """Encode utterances as they are made, until there are no more."""
    count = Count(name)
    for utterances in map(heard, made):
        codes = encode_waves(codec, [wave for _, _, wave in utterances])
        for (text, speaker, _), frames in zip(utterances, codes, strict=True):
            speakers.add(speaker, said[text], frames)
        count.add(utterances)
    speakers.finish()
    print(f"{name}: {count.hours:.2f} h in all, {speakers.num_shards} shards", flush=True)


def held_back(studio: Studio, phonemes: Path) -> tuple[list[str], list[Utterance]]:
    """Generate held-out sentences by held-out speakers.

    Return the texts, and the utterances by number of their text.
    """
    said, items = read_texts(phonemes, 0, 1)
    speakers = held_out_speakers()
    given = [
        (text, place // PER_GROUP, speakers[place // PER_GROUP % len(speakers)]) for place, text in enumerate(items)
    ]
    return said, [*studio.record(given), *studio.finish()]


def main() -> None:
    """Speak and encode for some seconds, on the best device there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--phonemes", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--again", type=int, default=0, help="how often this part was started before: it says others")
    parser.add_argument("--batch-s", type=float, default=240.0)
    parser.add_argument(
        "--held-out", type=Path, help="phonemes of held-out sentences, which part 0 says before all else"
    )
    parser.add_argument("--beside", type=int, default=1, help="how many processes share this one's GPU")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(options.part)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bound_memory(device, options.beside)
    began = time.monotonic()
    write_vocabulary(options.work)
    (options.work / "tokens").mkdir(exist_ok=True)
    codec = AsTrained(open_dac(options.work, encodes=True, device=device))
    studio, names = open_studio(options.teacher, device, options.batch_s)
    said, items = read_texts(options.phonemes, options.part, options.parts)
    print(f"tokens {options.part}: {len(items)} texts, ready in {time.monotonic() - began:.0f} s", flush=True)
    made = recorded(
        studio, items, names,
        part=options.part + options.parts * 10**6 * options.again,
        parts=options.parts, seconds=options.seconds, per_speaker=PER_GROUP,
    )  # fmt: skip
    tokenizer = S1Tokenizer.from_directory(options.work)
    if options.held_out and not options.part:
        texts_of_held, spoken = held_back(studio, options.held_out)
        encode([spoken], texts_of_held, codec, Speakers(options.work / "tokens", "held", tokenizer), "held back")
    speakers = Speakers(options.work / "tokens", f"{options.part:02d}{chr(97 + options.again)}", tokenizer)
    encode(made, said, codec, speakers, f"tokens {options.part}")


if __name__ == "__main__":
    main()
