"""Judge voices by ear, old beside new: one table, then one line of JSON.

python -m recipes.voice.judge --packages DIR --checkpoint DIR [--checkpoint DIR …] [--sentences 30]
    [--who default voices clones] [--speech HELD.npz --phonemes HELD.xz [--recording-s 7]]

Every checkpoint speaks the same held-out sentences on the CPU, at the engine's defaults: in its default voice, in all
of its voices in turn, or as the held-out speakers that `gate.py speak` wrote to `--speech`, each cloned from another of
its utterances, or from several that last as long as is wanted; what the teacher says stands beside that. `--packages`
is what `packages.py` wrote. Needs `requirements.txt` beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
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

from recipes.voice.ears import Ears
from recipes.voice.gate import RATE, Held, read_held
from recipes.voice.level import loudness
from recipes.voice.texts import held_out_sentences
from recipes.voice.words import compare
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.codecs.dac.config import read_dac_config

ROOMS = ("plain", "numbers", "plain", "names", "plain", "short", "plain", "long")  # of every eight sentences
LOUDNESS, MARGIN, PEAK = -16.0, 1.0, -1.0  # LUFS, LU, dBTP: what voices ship at
MAX_S_A_CHARACTER, MIN_LIMIT_S = 0.2, 4.0  # beyond it, somebody runs away
HEADS = (
    "who speaks",
    "DistillMOS",
    "lowest",
    "DNSMOS",
    "words wrong",
    "alike",
    "LUFS",
    "beyond",
    "dBTP",
    "no end",
    "RTF",
)

Wave = NDArray[np.float32]


class Said(NamedTuple):
    """A sentence as somebody says it: float32 [T]."""

    text: str
    voice: str  # utterances of one voice are to sound alike
    wave: Wave
    rate: int
    reference: Wave | None = None  # of the same rate, whom it is to sound like
    ended: bool = True  # by itself
    took_s: float = 0.0


def sentences(count: int) -> list[str]:
    """Choose held-out sentences, the same for everybody."""
    rooms = {name: iter(lines) for name, lines in held_out_sentences().items()}
    every = (next(rooms[name], None) for name in itertools.cycle(ROOMS))
    return [text for text in itertools.islice(every, count) if text]


class Speaker:
    """An engine on the CPU that says texts, each with a seed of its own, and is stopped where it runs away."""

    def __init__(self, engine: ProductionTTSEngine, frames_per_s: float) -> None:
        self.engine, self._frames_per_s = engine, frames_per_s

    @classmethod
    @contextmanager
    def of(cls, checkpoint: Path) -> Iterator[Speaker]:
        """Open a checkpoint; the first sentence, which takes longer, is said."""
        codec = read_dac_config(checkpoint)
        config = EngineConfig(checkpoint_path=checkpoint, device="cpu", compile="false", request_timeout_s=900)
        with ProductionTTSEngine(config) as engine:
            engine.generate("Hello.", max_new_tokens=8)
            yield cls(engine, codec.sample_rate / codec.samples_per_frame)

    def speak(self, texts: Iterable[str], voices: Sequence[str | None]) -> Iterator[Said]:
        """Generate texts with the voices in turn."""
        for index, text in enumerate(texts):
            voice = voices[index % len(voices)]
            yield self._said(text, str(voice), index, voice=voice)

    def clone(self, held: Sequence[Held], count: int, recording_s: float) -> Iterator[Said]:
        """Say the first `count` that held-out speakers said, each as it sounds in a recording of others."""
        for index, one in enumerate(held[:count]):
            other = recording(one, held, recording_s)
            if other is not None:
                reference = _resampled(other.wave, RATE, self.engine.sample_rate)
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
    """Join other utterances of a speaker, the first and more until they last so long; nothing if it has no other."""
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
    """Figures of what somebody says: means, but `lowest` and `peak`, and counts and errors in percent."""
    natural, quality, alike, loud, peaks, wrong, words, late = [], [], [], [], [], 0, 0, 0
    took_s = seconds = 0.0
    before: dict[str, Wave] = {}
    for one in said:
        natural.append(ears.naturalness(one.wave, one.rate))
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
    """The highest level between samples, too, in dB of full scale (four times the rate, as ITU-R BS.1770-4 has it)."""
    return 20 * math.log10(max(1e-6, float(np.abs(_resampled(wave, rate, 4 * rate)).max())))


def _resampled(wave: Wave, rate: int, wanted: int) -> Wave:
    import soxr  # is not where speech is made

    return np.asarray(soxr.resample(wave, rate, wanted), np.float32)


def table(rows: dict[str, dict[str, float]]) -> str:
    """Write rows one below another."""
    lines = [HEADS, ("---",) * len(HEADS)]
    for name, figures in rows.items():
        _, natural, lowest, quality, wrong, alike, loud, beyond, peak, late, factor = figures.values()
        cells = (f"{natural:.2f}", f"{lowest:.2f}", f"{quality:.2f}", f"{wrong:.1f} %", f"{alike:.2f}", f"{loud:.1f}")
        lines.append((name, *cells, f"{beyond:.0f} %", f"{peak:.1f}", f"{late:.1f} %", f"{factor:.2f}"))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Generate speech with checkpoints, and judge it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, action="append", required=True)
    parser.add_argument("--sentences", type=int, default=30)
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--phonemes", type=Path)
    parser.add_argument(
        "--recording-s", type=float, default=0.0, help="seconds that a clone hears at least; 0: one utterance"
    )
    parser.add_argument("--who", nargs="+", choices=("default", "voices", "clones"), default=["default", "voices"])
    options = parser.parse_args()
    if len({options.speech is None, options.phonemes is None, "clones" not in options.who}) > 1:
        parser.error("clones want --speech and --phonemes, which go together")
    ears, rows = Ears(options.packages), {}
    held = read_held(options.speech, options.phonemes, sys.maxsize) if options.speech else []
    if held:
        said = (Said(one.text, str(one.speaker), one.wave, RATE) for one in held[: options.sentences])
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
