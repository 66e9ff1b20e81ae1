"""Synthesize with the teacher and encode the audio as training data for the dual-AR model; the audio is not kept.

python -m recipes.voice.tokens --work DIR --teacher DIR --phonemes DIR --seconds 300 [--part K --parts N]
    [--again K] [--held-out FILE] [--beside 4] [--named 0.4]

`DIR` contains the finished codec. `--phonemes` is a file written by `phonemes.py` or a folder of such files, of which
each part uses its share; `--held-out` has held-out sentences, which part 0 synthesizes first. `--again` is the number
of earlier runs of this part, so that it uses other speakers and another order of texts; `--beside` is the number of
processes that share its GPU, and `--named` is the share of speakers with a built-in voice. A speaker has eight texts,
synthesized in any order and then written consecutively to `DIR/tokens`. The texts are normalized, like those that the
engine passes to the model.

The vocabulary consists of single bytes, pieces of the speaker tag, S1's control tokens and semantic tokens. Single
bytes are enough, because the model only reads the text aloud; the pieces shorten the tag to five tokens.

A shard contains consecutive utterances in the format of the engine's prompts (speaker tag, text, frames, end):
`main` int32 [T], `codes` int16 [K, T], `lengths` int32 [n] in tokens, `speaker` int32 [n].
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from recipes.voice.channels import ChannelsLast
from recipes.voice.shared import NewShards, fast_device, parser, write_shard
from recipes.voice.speakers import NAMED_SHARE, held_out_speakers
from recipes.voice.speech import Count, Studio, Utterance, bound_memory, heard, open_studio, read_phonemes, recorded
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.prompt import SPEAKER
from s1_mini.families.s1.random import CONTROL_TOKENS
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.files import files

PER_SHARD = 512  # utterances
TENS = re.compile(
    r"\b(twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)-(one|two|three|four|five|six|seven|eight|nine)\b", re.I
)
ROWS = 32  # utterances encoded at once, sorted by length so that little is padding
STEP = 16  # frames; lengths are multiples of it, because each new length costs a GPU a tenth of a second
PER_GROUP = 8  # utterances of one speaker in a prompt
NUM_SEMANTIC = 1024
MERGED = ("<|", "|>", "sp", "spe", "spea", "speak", "speake", "speaker")
PIECES = [bytes([value]) for value in range(256)] + [text.encode() for text in MERGED]  # of text, by token


def write_vocabulary(directory: Path) -> int:
    """Write `tokenizer.tiktoken` and `special_tokens.json`; return the size of the model's vocabulary.

    Several processes may do so at once, while others read.
    """
    lines = (f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(PIECES))
    files.publish(directory / "tokenizer.tiktoken", "".join(lines).encode())
    names = [f"<|{name}|>" for name in CONTROL_TOKENS] + [f"<|semantic:{i}|>" for i in range(NUM_SEMANTIC)]
    special = {name: len(PIECES) + index for index, name in enumerate(names)}
    files.publish(directory / "special_tokens.json", json.dumps(special).encode())
    return len(PIECES) + len(names)


class Coded(NamedTuple):
    """One utterance."""

    speaker: int
    text: str
    codes: NDArray[np.int16]  # [K, F]


def encode_waves(codec: Dac | AsTrained, waves: list[NDArray[np.int16]]) -> list[NDArray[np.int16]]:
    """Codes [K, F] of every int16 wave [samples], as if each were encoded alone."""
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
    """Return the arrays of a shard: all utterances in order, each in the format of a part of a prompt."""
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
    """Segments of prompts, grouped by speaker; grows while shards appear in `directory`."""

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
        self._shards, self._interleave = NewShards(directory, chosen), interleave
        self._main = torch.empty(max_tokens, dtype=torch.int32, device=device)
        self._codes = torch.empty(num_books, max_tokens, dtype=torch.int16, device=device)
        max_groups = max_tokens // 256
        self._starts = torch.zeros(max_groups, PER_GROUP, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(max_groups, PER_GROUP, dtype=torch.int64, device=device)  # 0: no utterance
        self._end = torch.zeros((), dtype=torch.float64, device=device)  # groups; read inside captured steps
        self.num_tokens = self.num_groups = self.num_utterances = 0

    def refill(self, max_shards: int = 64) -> None:
        """Read new shards as long as they fit."""
        for shard in self._shards.read(max_shards):
            starts, lengths = map(torch.from_numpy, _grouped(shard["speaker"], shard["lengths"]))
            main, codes = torch.from_numpy(shard["main"]), torch.from_numpy(shard["codes"])
            tokens = slice(self.num_tokens, self.num_tokens + len(main))
            groups = slice(self.num_groups, self.num_groups + len(starts))
            if tokens.stop > len(self._main) or groups.stop > len(self._starts):
                continue  # no room
            device = self._main.device
            self._main[tokens], self._codes[:, tokens] = main.to(device), codes.to(device)
            self._starts[groups], self._lengths[groups] = starts.to(device) + tokens.start, lengths.to(device)
            self.num_tokens, self.num_groups = tokens.stop, groups.stop
            self.num_utterances += int((lengths > 0).sum())
        self._end.fill_(self.num_groups)

    def random_groups(self, rows: int) -> Tensor:
        """Draw groups [rows]; safe inside a captured step."""
        return (torch.rand(rows, dtype=torch.float64, device=self._end.device) * self._end).long()

    def windows(self, groups: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Prompts of these groups, utterances in random order: columns [B, K + 1, T], and which are valid [B, T]."""
        starts, lengths = self._starts[groups], self._lengths[groups]
        order = torch.rand(lengths.shape, device=lengths.device).argsort(-1)
        starts, lengths = starts.gather(1, order), lengths.gather(1, order)
        ends = lengths.cumsum(-1)
        position = torch.arange(columns - 1, device=ends.device)
        segment = (position.view(1, -1, 1) >= ends.unsqueeze(1)).sum(
            -1
        )  # number of segments that end at or before the position
        there = segment < PER_GROUP
        segment = segment.clamp_max(PER_GROUP - 1)
        index = starts.gather(1, segment) + position - (ends - lengths).gather(1, segment)
        index = torch.where(there, index, 0)
        body = torch.cat((self._main[index].long().unsqueeze(1), self._codes[:, index].transpose(0, 1).long()), dim=1)
        first = torch.zeros_like(body[:, :, :1])
        first[:, 0] = self._interleave
        return torch.cat((first, body), dim=-1), F.pad(there, (1, 0), value=True)


def _grouped(speaker: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths [groups, PER_GROUP] of the utterances of each speaker, which are consecutive."""
    begins = np.cumsum(lengths) - lengths
    speakers = np.split(np.arange(len(speaker)), np.flatnonzero(np.diff(speaker)) + 1)
    groups = [part for one in speakers for part in np.split(one, range(PER_GROUP, len(one), PER_GROUP))]
    table = np.zeros((2, len(groups), PER_GROUP), np.int64)
    for row, group in enumerate(groups):
        table[:, row, : len(group)] = begins[group], lengths[group]
    return table[0], table[1]


class Speakers:
    """Encoded utterances that wait for others of their speaker, and shards of complete speakers."""

    def __init__(self, output: Path, name: str, tokenizer: S1Tokenizer) -> None:
        self._output, self._name, self._tokenizer = output, name, tokenizer
        self._waiting: dict[int, list[Coded]] = defaultdict(list)
        self._ready: list[Coded] = []
        self.num_shards = 0

    def add(self, speaker: int, text: str, codes: NDArray[np.int16]) -> None:
        """Add an utterance; write a shard if it completes one."""
        waiting = self._waiting[speaker]
        waiting.append(Coded(speaker, text, codes))
        if len(waiting) == PER_GROUP:
            self._ready += self._waiting.pop(speaker)
            if len(self._ready) >= PER_SHARD:
                self._write()

    def finish(self) -> None:
        """Write the remaining utterances, including those of speakers with fewer than `PER_GROUP`."""
        for speaker in sorted(self._waiting):
            self._ready += self._waiting[speaker]
        self._waiting.clear()
        if self._ready:
            self._write()

    def _write(self) -> None:
        write_shard(
            self._output / f"shard_{self._name}_{self.num_shards:05d}.npz", **as_segments(self._ready, self._tokenizer)
        )
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
    """Vary a text: half of the texts have "twenty one" without a hyphen, a twentieth have no capitals."""
    if len(read) % 2:
        read = TENS.sub(r"\1 \2", read)
    return read.lower() if len(read) % 20 == 7 else read


@torch.inference_mode()
def encode(
    made: Iterable[Sequence[Utterance]], texts: Sequence[str], codec: AsTrained, speakers: Speakers, name: str
) -> None:
    """Encode utterances as they are generated, until there are no more."""
    count = Count(name)
    for utterances in map(heard, made):
        codes = encode_waves(codec, [wave for _, _, wave in utterances])
        for (text, speaker, _), frames in zip(utterances, codes, strict=True):
            speakers.add(speaker, written(texts[text]), frames)
        count.add(utterances)
    speakers.finish()
    print(f"{name}: {count.hours:.2f} h in total, {speakers.num_shards} shards", flush=True)


def held_back(studio: Studio, phonemes: Path) -> tuple[list[str], list[Utterance]]:
    """Return held-out sentences, and their utterances by held-out speakers."""
    texts, items = read_phonemes(phonemes)
    speakers = held_out_speakers()
    given = [
        (text, place // PER_GROUP, speakers[place // PER_GROUP % len(speakers)]) for place, text in enumerate(items)
    ]
    return texts, [*studio.record(given), *studio.finish()]


def main() -> None:
    options = parser(
        __doc__,
        work=Path,
        teacher=Path,
        phonemes=Path,
        seconds=300.0,
        part=0,
        parts=1,
        again=0,
        batch_s=240.0,
        held_out=Path | None,
        beside=1,
        named=NAMED_SHARE,
    ).parse_args()
    device = fast_device(options.part)
    bound_memory(device, options.beside)
    began = time.monotonic()
    write_vocabulary(options.work)
    output = options.work / "tokens"
    output.mkdir(exist_ok=True)
    codec = AsTrained(open_dac(options.work, encodes=True, device=device))
    studio, names = open_studio(options.teacher, device, options.batch_s)
    texts, items = read_phonemes(options.phonemes, options.part, options.parts)
    print(f"tokens {options.part}: {len(items)} texts, ready in {time.monotonic() - began:.0f} s", flush=True)
    made = recorded(
        studio, items, names,
        part=options.part + options.parts * 10**6 * options.again,
        parts=options.parts, seconds=options.seconds, per_speaker=PER_GROUP, named_share=options.named,
    )  # fmt: skip
    tokenizer = S1Tokenizer.from_directory(options.work)
    if options.held_out and not options.part:
        held_texts, spoken = held_back(studio, options.held_out)
        encode([spoken], held_texts, codec, Speakers(output, "held", tokenizer), "held out")
    speakers = Speakers(output, f"{options.part:02d}{chr(97 + options.again)}", tokenizer)
    encode(made, texts, codec, speakers, f"tokens {options.part}")


if __name__ == "__main__":
    main()
