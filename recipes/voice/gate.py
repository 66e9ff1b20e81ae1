"""The codec's gate: what its round trip costs of held-out speech by held-out speakers.

python -m recipes.voice.gate speak --teacher DIR --phonemes FILE --output HELD.npz       (on a GPU)
python -m recipes.voice.gate measure --codec DIR --packages DIR --phonemes FILE --speech HELD.npz [--count 120]

`--phonemes` is what `phonemes.py --held-out` wrote. `measure` passes (exit code 0) if the round trip loses at most
0.3 of DistillMOS and one point of Whisper base's word error. It needs `requirements.txt` beside this file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from recipes.voice.ears import Ears
from recipes.voice.speakers import held_out_speakers
from recipes.voice.speech import MAX_S, open_studio, read_phonemes, trimmed, write_shard
from recipes.voice.words import compare
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac

MOST_LOST, MOST_ERRORS = 0.3, 0.01
RATE = 24_000


class Held(NamedTuple):
    """One held-out utterance: what is said, by which held-out speaker, float32 [T]."""

    text: str
    speaker: int
    wave: np.ndarray


def speak(teacher: Path, phonemes: Path, output: Path) -> None:
    """Generate the held-out sentences by held-out speakers in turn."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    studio, _ = open_studio(teacher, device, batch_s=60.0)
    speakers = held_out_speakers()
    texts = read_phonemes(phonemes)
    items = [(text, text.number % len(speakers), speakers[text.number % len(speakers)]) for text in texts]
    spoken = [*studio.record(items), *studio.finish()]
    spoken.sort(key=lambda one: one.text)
    write_shard(output, [(one.text, one.speaker, trimmed(one.samples.cpu().numpy())) for one in spoken])


def read_held(speech: Path, phonemes: Path, count: int) -> list[Held]:
    """Read the first `count` utterances of what `speak` wrote, with their texts."""
    texts = [line[0] for line in json.loads(lzma.decompress(phonemes.read_bytes()))]
    with np.load(speech) as shard:
        waves = np.split(shard["samples"].astype(np.float32) / 32768, np.cumsum(shard["lengths"])[:-1])
        said, who = shard["text"].tolist(), shard["speaker"].tolist()
    held = [Held(texts[text], speaker, wave) for text, speaker, wave in zip(said, who, waves, strict=True)]
    return [one for one in held if len(one.wave) < MAX_S * RATE][:count]


@torch.inference_mode()
def round_trip(codec: Dac, wave: np.ndarray) -> np.ndarray:
    """Encode and decode one wave, as the engine does."""
    codes = codec.encode(torch.from_numpy(wave))
    decoded: np.ndarray = codec.decode(codes.unsqueeze(0))[0].float().numpy()[: len(wave)]
    return decoded


def measure(held: list[Held], codec: Dac | None, ears: Ears) -> dict[str, float]:
    """Means of naturalness and similarity and the word error of the teacher's speech, or of its round trip."""
    natural, alike, wrong, words = [], [], 0, 0
    for one in held:
        wave = one.wave if codec is None else round_trip(codec, one.wave)
        natural.append(ears.naturalness(wave, RATE))
        heard = compare(one.text, ears.words(wave, RATE))
        wrong, words = wrong + heard.word_errors, words + heard.words
        if codec is not None:
            alike.append(ears.similarity(wave, one.wave, RATE))
    figures = {"distillmos": float(np.mean(natural)), "lowest": float(np.min(natural)), "word_error": wrong / words}
    return figures | ({"similarity": float(np.mean(alike))} if alike else {})


def main() -> int:
    """Speak or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("speak", "measure"))
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--phonemes", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--codec", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--count", type=int, default=120)
    options = parser.parse_args()
    if options.verb == "speak":
        speak(options.teacher, options.phonemes, options.output)
        return 0
    held = read_held(options.speech, options.phonemes, options.count)
    ears = Ears(options.packages)
    teacher = measure(held, None, ears)
    print("teacher", json.dumps(teacher), flush=True)
    codec = measure(held, open_dac(options.codec, encodes=True), ears)
    print("codec", json.dumps(codec), flush=True)
    lost, more = teacher["distillmos"] - codec["distillmos"], codec["word_error"] - teacher["word_error"]
    print(f"{len(held)} utterances: the round trip costs {lost:.3f} of DistillMOS and {100 * more:.2f} points of words")
    return 0 if lost <= MOST_LOST and more <= MOST_ERRORS else 1


if __name__ == "__main__":
    sys.exit(main())
