"""Generate speech on a GPU: shards of utterances at 24 kHz, all at the same loudness, with many speakers.

python -m recipes.voice.speech --teacher DIR --phonemes FILE --output DIR --seconds 60

`--teacher` is the output of `packages.py`, `--phonemes` that of `phonemes.py`. A shard is an uncompressed .npz:
`samples` int16, `lengths` of its utterances, their `text` (an index into the texts of all files of `--phonemes`) and
`speaker`. `--parts` processes may write to one folder, each with its own `--part` from 0: all speak all texts, in other
orders and by other speakers. `--per-speaker` consecutive texts share a speaker. Texts are started for `--seconds`, and
texts of similar length are generated together once they add up to `--batch-s` seconds of audio; smaller batches take
less memory.
"""

from __future__ import annotations

import json
import lzma
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recipes.voice.level import levelled
from recipes.voice.shared import fast_device, parser, write_shard
from recipes.voice.speakers import NAMED_SHARE, Speaker, Styles, speaker
from recipes.voice.teacher import RATE, SAMPLES_PER_FRAME, SHELF, Spoken, Teacher

CHUNK = 512  # texts whose durations are predicted at once
GROUP = 8 * CHUNK  # texts that are sorted by length
MAX_PHONEMES = 240
MAX_S = 16.0
KEPT_LEAD_S = 0.05  # kept part of the teacher's initial silence, which lasts a third to half a second
# Audio of this length is kept after the last phoneme, or after the last audio if that is earlier, and faded out. The
# teacher may breathe for 0.8 s at the end.
KEPT_TAIL_S = 0.25
KEPT_FRAMES = round(KEPT_TAIL_S * RATE / SAMPLES_PER_FRAME)
LOUD = 300  # of 32,768
EVEN = 24  # lengths of transforms are multiples of this number
MAX_PLANS = 16  # of cuFFT


class Text(NamedTuple):
    """A text as American and as British phonemes."""

    number: int  # position in the slice that `read_phonemes` reads
    american: str
    british: str


class Utterance(NamedTuple):
    """A text by a speaker, with its audio int16 [T]."""

    text: int
    speaker: int
    samples: Tensor


Heard = tuple[int, int, np.ndarray]  # text, speaker, samples int16 [T], off the device


class _Waiting(NamedTuple):
    text: Text
    speaker_index: int
    speaker: Speaker
    spoken: Spoken


class Studio:
    """The teacher, its styles, and texts that wait for enough others of the same length."""

    def __init__(self, teacher: Teacher, styles: Styles, batch_s: float) -> None:
        self._teacher, self._styles, self._batch_s = teacher, styles, batch_s
        self._shelves: dict[int, list[_Waiting]] = defaultdict(list)

    def record(self, items: Sequence[tuple[Text, int, Speaker]]) -> Iterator[Utterance]:
        """Queue texts with their speakers' indexes and speakers; yield finished utterances in any order."""
        device, numbers, rows = self._teacher.device, [], []
        for text, _, who in items:
            numbers.append(self._teacher.numbers(text.british if who.is_british else text.american))
            rows.append(self._styles.row(who, len(numbers[-1]) - 2))
        speeds = torch.tensor(
            [who.rate / who.pitch for _, _, who in items], device=device
        )  # resampling also makes speech faster
        prepared = self._teacher.prepare(numbers, torch.stack(rows).to(device), speeds)
        for (text, index, who), spoken in zip(items, prepared, strict=True):
            num_frames = spoken.num_frames + -spoken.num_frames % SHELF
            if num_frames * SAMPLES_PER_FRAME > MAX_S * RATE:
                continue
            shelf = self._shelves[num_frames]
            shelf.append(_Waiting(text, index, who, spoken))
            if len(shelf) * num_frames * SAMPLES_PER_FRAME >= self._batch_s * RATE:
                yield from self._all_or_halves(self._shelves.pop(num_frames), num_frames)

    def finish(self) -> Iterator[Utterance]:
        for num_frames in sorted(self._shelves):
            yield from self._all_or_halves(self._shelves.pop(num_frames), num_frames)

    def _all_or_halves(self, waiting: list[_Waiting], num_frames: int) -> Iterator[Utterance]:
        """Generate as many at once as fit into memory, which other processes may have taken."""
        try:
            yield from list(self._spoken(waiting, num_frames))
        except RuntimeError as error:  # cuFFT raises a plain RuntimeError if it lacks memory
            lacks_memory = isinstance(error, torch.OutOfMemoryError) or "cuFFT" in str(error)
            if len(waiting) == 1 or not lacks_memory:
                raise
        else:
            return
        torch.cuda.empty_cache()
        half = len(waiting) // 2
        yield from self._all_or_halves(waiting[:half], num_frames)
        yield from self._all_or_halves(waiting[half:], num_frames)

    def _spoken(self, waiting: list[_Waiting], num_frames: int) -> Iterator[Utterance]:
        waves = self._teacher.speak([one.spoken for one in waiting], num_frames)
        for pitch in sorted({one.speaker.pitch for one in waiting}):
            rows = [row for row, one in enumerate(waiting) if one.speaker.pitch == pitch]
            higher = resampled(waves[rows], pitch)
            samples = (levelled(higher, RATE) * 32767).round().to(torch.int16)
            for row, wave in zip(rows, samples, strict=True):
                one = waiting[row]
                kept = min(one.spoken.num_frames, one.spoken.num_sounding + KEPT_FRAMES)
                length = round(kept * SAMPLES_PER_FRAME / pitch)
                yield Utterance(one.text.number, one.speaker_index, wave[:length])


def bound_memory(device: torch.device, processes: int) -> None:
    """Limit this process to its share of the memory of a GPU that `processes` share, leaving some to cuFFT and cuDNN.

    torch keeps the memory that it has allocated, and cuFFT keeps up to 4,096 plans, one for every count and length of
    rows: without limits, eight processes ran out of memory after five minutes.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(0.8 / processes, device.index or 0)
        torch.backends.cuda.cufft_plan_cache[device.index or 0].max_size = MAX_PLANS


def resampled(waves: Tensor, factor: float, fade: tuple[float, float] | None = None) -> Tensor:
    """Waves [B, T] played faster by `factor`, which also raises pitch and formants; band-limited.

    `fade` is where the remaining frequencies begin to fade out and where they end, as shares of the new band.
    `factor` is rounded to a fraction. Input lengths are padded to multiples of `EVEN` times its numerator; output
    lengths are then multiples of `EVEN` times its denominator, because transforms of lengths with
    large prime factors take many times the memory.
    """
    if factor == 1:
        return waves
    length, fraction = waves.shape[-1], Fraction(factor).limit_denominator(100)
    steps = -(-length // (EVEN * fraction.numerator))
    filled, wanted = (EVEN * steps * part for part in fraction.as_integer_ratio())
    spectrum = torch.fft.rfft(torch.nn.functional.pad(waves.float(), (0, filled - length)))
    bins = wanted // 2 + 1
    kept = torch.nn.functional.pad(spectrum[:, :bins], (0, max(0, bins - spectrum.shape[1])))
    if fade is not None:
        position = torch.linspace(0, 1, bins, device=kept.device)
        kept = kept * (torch.pi / 2 * ((position - fade[0]) / (fade[1] - fade[0])).clamp(0, 1)).cos().square()
    return torch.fft.irfft(kept, n=wanted)[:, : round(length / factor)] * (wanted / filled)


def trimmed(samples: np.ndarray) -> np.ndarray:
    """Shorten silence to `KEPT_LEAD_S` at the beginning and `KEPT_TAIL_S` at the end, and fade out the end."""
    loud = np.flatnonzero(np.abs(samples) > LOUD)
    if len(loud):
        start, end = int(loud[0]) - round(KEPT_LEAD_S * RATE), int(loud[-1]) + round(KEPT_TAIL_S * RATE)
        samples = samples[max(0, start) : end]
    faded: np.ndarray = samples.copy()
    ending = faded[max(0, len(faded) - round(KEPT_TAIL_S * RATE)) :]
    ending[:] = ending * np.cos(np.linspace(0, np.pi / 2, len(ending))) ** 2
    return faded


def read_phonemes(path: Path, part: int = 0, parts: int = 1) -> tuple[list[str], list[Text]]:
    """Read a part of the output of `phonemes.py`, which is a file or a folder of files.

    The texts of all files are concatenated, and a part is the slice `[part::parts]`. Return the words of all its texts,
    and the phonemes of those that are neither too short nor too long (`MAX_PHONEMES`), numbered by position in it.
    """
    paths = sorted(path.glob("*.xz")) if path.is_dir() else [path]
    lines = [line for each in paths for line in json.loads(lzma.decompress(each.read_bytes()))][part::parts]
    numbered = [Text(number, american, british) for number, (_, american, british) in enumerate(lines)]
    fitting = [t for t in numbered if len(t.american) >= 2 and max(len(t.american), len(t.british)) <= MAX_PHONEMES]
    return [line[0] for line in lines], fitting


def write_utterances(path: Path, utterances: Sequence[Heard]) -> None:
    texts, speakers, samples = zip(*utterances, strict=True)
    write_shard(
        path,
        samples=np.concatenate(samples),
        lengths=np.array([len(each) for each in samples], np.int32),
        text=np.array(texts, np.int32),
        speaker=np.array(speakers, np.int32),
    )


def recorded(
    studio: Studio,
    texts: Sequence[Text],
    names: list[str],
    *,
    part: int,
    parts: int,
    seconds: float,
    per_speaker: int,
    named_share: float = NAMED_SHARE,
) -> Iterator[list[Utterance]]:
    """Speak texts in random order, repeatedly, until `seconds` have passed, and finish the texts already started.

    `per_speaker` consecutive texts have one speaker. Utterances come in any order; no two parts share a speaker.
    """
    began, random, who = time.monotonic(), np.random.default_rng(part), part
    while time.monotonic() - began < seconds:
        order = random.permutation(len(texts))
        for group in np.split(order, range(GROUP, len(order), GROUP)):
            items = []
            for texts_of_one in np.split(group, range(per_speaker, len(group), per_speaker)):
                items += [(texts[place], who, speaker(who, names, named_share)) for place in texts_of_one]
                who += parts
            items.sort(key=lambda item: len(item[0].american))  # for less padding
            for at in range(0, len(items), CHUNK):
                if time.monotonic() - began < seconds:
                    yield list(studio.record(items[at : at + CHUNK]))
    yield list(studio.finish())


def heard(utterances: Sequence[Utterance]) -> list[Heard]:
    """Return utterances with trimmed samples, by one copy off the device."""
    if not utterances:
        return []
    lengths = [len(one.samples) for one in utterances]
    whole = torch.cat([one.samples for one in utterances]).cpu().numpy()
    waves = np.split(whole, np.cumsum(lengths)[:-1])
    return [(one.text, one.speaker, trimmed(wave)) for one, wave in zip(utterances, waves, strict=True)]


class Count:
    """Progress of one process, printed every ten seconds."""

    def __init__(self, maker: str) -> None:
        self._maker, self._began, self._told, self._samples = maker, time.monotonic(), time.monotonic(), 0

    def add(self, utterances: Sequence[Heard]) -> None:
        self._samples += sum(len(wave) for _, _, wave in utterances)
        if time.monotonic() - self._told > 10:
            self._told = time.monotonic()
            rate = self._samples / RATE / (self._told - self._began)
            print(f"{self._maker}: {self.hours:.2f} h, {rate:.0f} s/s", flush=True)

    @property
    def hours(self) -> float:
        return self._samples / RATE / 3600


def open_studio(directory: Path, device: torch.device, batch_s: float) -> tuple[Studio, list[str]]:
    """Load the teacher and its styles from the output of `packages.py`; also return the names of the voices."""
    styles = Styles.read(directory / "voices")
    teacher = Teacher(directory / "model.onnx", directory / "vocab.json", device)
    return Studio(teacher, styles, batch_s), list(styles.tables)


def main() -> None:
    options = parser(
        __doc__, teacher=Path, phonemes=Path, output=Path, seconds=60.0, part=0, parts=1, batch_s=640.0, per_speaker=1
    ).parse_args()
    device = fast_device(options.part)
    options.output.mkdir(parents=True, exist_ok=True)
    studio, names = open_studio(options.teacher, device, options.batch_s)
    _, texts = read_phonemes(options.phonemes)
    made = recorded(
        studio, texts, names,
        part=options.part, parts=options.parts, seconds=options.seconds, per_speaker=options.per_speaker,
    )  # fmt: skip
    count = Count(f"speech {options.part}")
    for shard, utterances in enumerate(map(heard, made)):
        if utterances:
            write_utterances(options.output / f"shard_{options.part:02d}_{shard:05d}.npz", utterances)
        count.add(utterances)
    print(f"speech {options.part}: {count.hours:.2f} h in total", flush=True)


if __name__ == "__main__":
    main()
