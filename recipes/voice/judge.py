"""Compare voices with automatic metrics; prints a table, then one line of JSON.

python -m recipes.voice.judge --packages DIR --checkpoint DIR [--checkpoint DIR …] [--sentences 30]
    [--who default voices clones] [--speech HELD.npz --phonemes HELD.xz [--recording-s 7]]

Every checkpoint synthesizes the same held-out sentences on the CPU, with the engine's defaults: in its default voice,
in all of its voices in turn, or as the held-out speakers that `gate.py speak` wrote to `--speech`, compared with the
teacher's own audio. A held-out speaker is cloned from other utterances of the same speaker, joined until they last
`--recording-s`.
`--packages` is the output of `packages.py`. Needs this folder's `requirements.txt`.
"""

from __future__ import annotations

import itertools
import json
import lzma
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.voice.ears import Ears, at_rate
from recipes.voice.level import loudness
from recipes.voice.shared import parser
from recipes.voice.speech import MAX_S
from recipes.voice.teacher import RATE
from recipes.voice.texts import held_out_sentences
from recipes.voice.words import compare
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.codecs.dac.config import read_dac_config

KINDS = ("plain", "numbers", "plain", "names", "plain", "short", "plain", "long")  # of the sentences, repeated
LOUDNESS, MARGIN, PEAK = -16.0, 1.0, -1.0  # target of exported voices: LUFS, LU, dBTP
MAX_S_A_CHARACTER, MIN_LIMIT_S = 0.2, 4.0  # a longer generation counts as not stopping
# Figures of a table: heading and format.
COLUMNS = {
    "distillmos": ("DistillMOS", "{:.2f}"),
    "lowest": ("lowest", "{:.2f}"),
    "p808": ("P.808", "{:.2f}"),
    "dnsmos": ("DNSMOS", "{:.2f}"),
    "word_error": ("wrong words", "{:.1f} %"),
    "similarity": ("similarity", "{:.2f}"),
    "loudness": ("LUFS", "{:.1f}"),
    "too_loud_or_soft": ("too loud or soft", "{:.0f} %"),
    "true_peak": ("dBTP", "{:.1f}"),
    "without_end": ("did not stop", "{:.1f} %"),
    "real_time_factor": ("RTF", "{:.2f}"),
}

Wave = NDArray[np.float32]


class Held(NamedTuple):
    """One held-out utterance: its text, the number of its held-out speaker, float32 [T]."""

    text: str
    speaker: int
    wave: Wave


class Said(NamedTuple):
    """A sentence spoken by a voice: float32 [T]."""

    text: str
    voice: str  # utterances of one voice should sound alike
    wave: Wave
    rate: int
    reference: Wave | None = None  # recording of the cloned speaker, at the same rate
    ended: bool = True  # whether the generation stopped by itself
    took_s: float = 0.0


def read_held(speech: Path, phonemes: Path, count: int) -> list[Held]:
    """Read the first `count` utterances that `gate.py speak` wrote to `speech`, with their texts."""
    texts = [line[0] for line in json.loads(lzma.decompress(phonemes.read_bytes()))]
    with np.load(speech) as shard:
        waves = np.split(shard["samples"].astype(np.float32) / 32768, np.cumsum(shard["lengths"])[:-1])
        held = [Held(texts[text], *rest) for text, *rest in zip(shard["text"], shard["speaker"], waves, strict=True)]
    return [each for each in held if len(each.wave) < MAX_S * RATE][:count]


def sentences(count: int) -> list[str]:
    """Return held-out sentences, always the same."""
    kinds = {name: iter(lines) for name, lines in held_out_sentences().items()}
    every = (next(kinds[name], None) for name in itertools.cycle(KINDS))
    return [text for text in itertools.islice(every, count) if text]


class Speaker:
    """An engine on the CPU that speaks texts, each with its own seed, and with a limit that no sentence reaches."""

    def __init__(self, engine: ProductionTTSEngine, frames_per_s: float) -> None:
        self.engine, self._frames_per_s = engine, frames_per_s

    @classmethod
    @contextmanager
    def of(cls, checkpoint: Path) -> Iterator[Speaker]:
        """Open a checkpoint and warm it up."""
        codec = read_dac_config(checkpoint)
        config = EngineConfig(checkpoint_path=checkpoint, device="cpu", compile="false", request_timeout_s=900)
        with ProductionTTSEngine(config) as engine:
            engine.generate("Hello.", max_new_tokens=8)
            yield cls(engine, codec.sample_rate / codec.samples_per_frame)

    def speak(self, texts: Iterable[str], voices: Sequence[str | None]) -> Iterator[Said]:
        for index, text in enumerate(texts):
            voice = voices[index % len(voices)]
            yield self._said(text, str(voice), index, voice=voice)

    def clone(self, held: Sequence[Held], count: int, recording_s: float) -> Iterator[Said]:
        """Generate the first `count` held-out utterances, each cloned from other utterances of its speaker."""
        for index, one in enumerate(held[:count]):
            other = recording(one, held, recording_s)
            if other is not None:
                reference = at_rate(other.wave, RATE, self.engine.sample_rate)
                said = self._said(one.text, "", index, reference_audio=reference, reference_text=other.text)
                yield said._replace(reference=reference)

    def _said(self, text: str, who: str, seed: int, **options: Any) -> Said:
        limit_s = max(MIN_LIMIT_S, MAX_S_A_CHARACTER * len(text))
        began = time.perf_counter()
        made = self.engine.generate(text, seed=seed, max_new_tokens=round(limit_s * self._frames_per_s), **options)
        took_s, ended = time.perf_counter() - began, made.finish_reason == "stop"
        assert made.audio is not None
        return Said(text, who, np.asarray(made.audio, np.float32), made.sample_rate, ended=ended, took_s=took_s)


def recording(one: Held, held: Sequence[Held], seconds: float) -> Held | None:
    """Join other utterances of a speaker until they last `seconds`; None if there is no other."""
    taken: list[Held] = []
    for other in held:
        if other.speaker == one.speaker and other is not one:
            taken.append(other)
            if sum(len(each.wave) for each in taken) >= seconds * RATE:
                break
    if not taken:
        return None
    return Held(" ".join(each.text for each in taken), one.speaker, np.concatenate([each.wave for each in taken]))


def judge(said: Iterable[Said], ears: Ears) -> dict[str, float]:
    """Return figures of utterances: means (except `lowest` and `true_peak`), and shares in percent."""
    natural, opinion, quality, alike, loud, peaks, wrong, words, late = [], [], [], [], [], [], 0, 0, 0
    took_s = seconds = 0.0
    before: dict[str, Wave] = {}
    for one in said:
        natural.append(ears.naturalness(one.wave, one.rate))
        opinion.append(ears.opinion(one.wave, one.rate))
        quality.append(ears.quality(one.wave, one.rate))
        heard = compare(one.text, ears.words(one.wave, one.rate))
        wrong, words, late = wrong + heard.word_errors, words + heard.words, late + (not one.ended)
        other = one.reference if one.reference is not None else before.get(one.voice)
        if other is not None:
            alike.append(ears.similarity(one.wave, other, one.rate))
        before[one.voice] = one.wave
        loud.append(float(loudness(torch.from_numpy(one.wave).unsqueeze(0), one.rate)))
        peaks.append(true_peak(one.wave, one.rate))
        took_s, seconds = took_s + one.took_s, seconds + len(one.wave) / one.rate
    return {
        "utterances": len(natural),
        "distillmos": float(np.mean(natural)),
        "lowest": float(np.min(natural)),
        "p808": float(np.mean(opinion)),
        "dnsmos": float(np.mean(quality)),
        "word_error": 100 * wrong / words,
        "similarity": float(np.mean(alike)) if alike else math.nan,
        "loudness": float(np.mean(loud)),
        "too_loud_or_soft": 100 * float(np.mean(np.abs(np.array(loud) - LOUDNESS) > MARGIN)),
        "true_peak": max(peaks),
        "without_end": 100 * late / len(natural),
        "real_time_factor": took_s / seconds,
    }


def true_peak(wave: Wave, rate: int) -> float:
    """The true peak in dBTP, including levels between samples (4 × oversampling, ITU-R BS.1770-4)."""
    return 20 * math.log10(max(1e-6, float(np.abs(at_rate(wave, rate, 4 * rate)).max())))


def table(rows: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table of figures, one row for each name."""
    heads = ["voice", *(heading for heading, _ in COLUMNS.values())]
    lines = [heads, ["---"] * len(heads)]
    for name, figures in rows.items():
        lines.append([name, *(form.format(figures[column]) for column, (_, form) in COLUMNS.items())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    command = parser(__doc__, packages=Path, sentences=30, speech=Path | None, phonemes=Path | None, recording_s=0.0)
    command.add_argument("--checkpoint", type=Path, action="append", required=True)
    command.add_argument("--who", nargs="+", choices=("default", "voices", "clones"), default=["default", "voices"])
    options = command.parse_args()
    if len({options.speech is None, options.phonemes is None, "clones" not in options.who}) > 1:
        command.error("--who clones, --speech and --phonemes must be used together")
    ears, rows = Ears(options.packages), {}
    held = read_held(options.speech, options.phonemes, sys.maxsize) if options.speech else []
    if held:
        said = (Said(each.text, str(each.speaker), each.wave, RATE) for each in held[: options.sentences])
        rows["teacher"] = judge(said, ears)
    texts = sentences(options.sentences)
    for checkpoint in options.checkpoint:
        with Speaker.of(checkpoint) as speaker:
            names = speaker.engine.voice_names()
            clones = speaker.clone(held, options.sentences, options.recording_s)
            made = {"default": speaker.speak(texts, [None]), "clones": clones}
            if names:
                made["voices"] = speaker.speak(texts, names)
            for name in (name for name in options.who if name in made):
                rows[f"{checkpoint.name}, {name}"] = judge(made[name], ears)
                print(json.dumps(rows), file=sys.stderr, flush=True)
    print(table(rows))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
