"""Many distinct speakers from the teacher's style tables: mixtures, moved away from the mean, shifted in pitch.

A style row contains timbre (the decoder's half) and prosody (the predictor's half). Each half of a mixed speaker is a
separate mixture, moved away from the mean of the English voices. The other speakers are the teacher's own voices. The
audio of each speaker, except those of `NAMED`, is resampled by a factor, which may be 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.voice.weights import STYLE

# Voices that are not used for training speakers: a woman and a man of each accent.
HELD_OUT = ("af_sarah", "am_eric", "bf_isabella", "bm_daniel")
# Also left out: their DistillMOS is 3.8 to 4.0, that of the other voices 4.4 to 4.7. af_nicole whispers.
POOR = ("af_nicole", "am_puck", "bf_alice", "bm_lewis")
PITCHES = (0.92, 0.96, 1.0, 1.0, 1.0, 1.04, 1.09)  # resampling: pitch and formants together; 1 three times as often
# The teacher's voices that are training speakers unmixed, by their names in the built-in checkpoint (which has no
# emily).
NAMED = {
    "anna": "af_heart", "emily": "af_bella", "julia": "af_nova", "robert": "am_michael", "henry": "am_onyx",
    "thomas": "am_fenrir", "clara": "bf_emma", "grace": "bf_lily", "alan": "bm_george", "oliver": "bm_fable",
}  # fmt: skip
NAMED_SHARE, NAMED_RATE = 0.4, (0.94, 1.06)  # share of the training speakers, range of their speaking rates
# Drawn twice as often as the others: the model loses most of their DistillMOS (0.2 to 0.6 of the codec's round trip).
WEAK = ("anna", "henry", "thomas", "grace")
SPREAD = (1.0, 1.5)  # factor for the distance of a mix from the mean of the English voices
PLAIN_SHARE = 0.15  # share of the speakers outside `NAMED` that are one resampled English voice, unmixed
FOREIGN_SHARE = 0.3  # share of the mixed timbres whose voices may also be of other languages
RATE = (0.88, 1.12)  # speaking rates of the speakers outside `NAMED`


@dataclass(frozen=True)
class Half:
    """One mix: voices, their weights, and the factor for its distance from the mean of the English voices."""

    voices: tuple[str, ...]
    weights: tuple[float, ...]
    spread: float = 1.0


@dataclass(frozen=True)
class Speaker:
    """Timbre, prosody, resampling factor and rate of one speaker."""

    sound: Half
    talk: Half
    pitch: float = 1.0
    rate: float = 1.0

    @property
    def is_british(self) -> bool:
        """Whether the prosody is mostly British, so that the speaker needs British phonemes."""
        return sum(w for v, w in zip(self.talk.voices, self.talk.weights, strict=True) if v[0] == "b") > 0.5


class Styles:
    """All style tables: [510, 256] by voice, a row for every count of phonemes."""

    def __init__(self, tables: dict[str, Tensor]) -> None:
        self.tables = tables
        self._mean = torch.stack([table for name, table in tables.items() if _is_english(name)]).mean(0)

    @classmethod
    def read(cls, directory: Path) -> Styles:
        """Read `directory/*.bin`, 32-bit floats."""
        files = sorted(directory.glob("*.bin"))
        return cls({f.stem: torch.from_numpy(np.fromfile(f, np.float32).reshape(-1, 2 * STYLE)) for f in files})

    def row(self, speaker: Speaker, num_phonemes: int) -> Tensor:
        """The style [256] of this speaker for a text of `num_phonemes`."""
        at = min(max(num_phonemes, 1), len(self._mean)) - 1
        return torch.cat((self._mixed(speaker.sound, at)[:STYLE], self._mixed(speaker.talk, at)[STYLE:]))

    def _mixed(self, half: Half, at: int) -> Tensor:
        mean = self._mean[at]
        mixed = sum((w * self.tables[v][at] for v, w in zip(half.voices, half.weights, strict=True)), mean * 0)
        return mean + half.spread * (mixed - mean)


def _is_english(voice: str) -> bool:
    return voice[0] in "ab"


def speaker(index: int, names: list[str], named_share: float = NAMED_SHARE) -> Speaker:
    """Return the training speaker of this index, always the same, mixed from the voices `names`."""
    random = np.random.default_rng([0xC0DE, index])
    every = sorted(name for name in names if name not in HELD_OUT and name not in POOR)
    english = [name for name in every if _is_english(name)]
    named = sorted({*NAMED.values()} & {*names})
    named += [NAMED[name] for name in WEAK if NAMED[name] in names]
    if named and random.random() < named_share:
        half = Half((str(random.choice(named)),), (1.0,))
        return Speaker(half, half, rate=float(random.uniform(*NAMED_RATE)))
    pitch, rate = float(random.choice(PITCHES)), float(random.uniform(*RATE))
    if random.random() < PLAIN_SHARE:
        half = Half((str(random.choice(english)),), (1.0,))
        return Speaker(half, half, pitch, rate)
    sound = _half(random, every if random.random() < FOREIGN_SHARE else english)
    return Speaker(sound, _half(random, english), pitch, rate)


def _half(random: np.random.Generator, voices: list[str]) -> Half:
    chosen = random.choice(voices, int(random.integers(2, 4)), replace=False)
    weights = random.dirichlet(np.ones(len(chosen)))
    return Half(tuple(map(str, chosen)), tuple(map(float, weights)), float(random.uniform(*SPREAD)))


def held_out_speakers() -> list[Speaker]:
    """List 16 speakers: the held-out voices alone, higher, lower, and mixed with one another."""
    alone = [Half((voice,), (1.0,)) for voice in HELD_OUT]
    speakers = [Speaker(half, half, pitch) for pitch in (1.0, 0.94, 1.06) for half in alone]
    for index, half in enumerate(alone):
        other = HELD_OUT[(index + 2) % len(HELD_OUT)]
        speakers.append(Speaker(Half((HELD_OUT[index], other), (0.65, 0.35), 1.3), half))
    return speakers
