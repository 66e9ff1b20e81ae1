"""Measure the quality loss of held-out speech by held-out speakers in the codec's round trip.

python -m recipes.voice.gate speak --teacher DIR --phonemes FILE --output HELD.npz       (on a GPU)
python -m recipes.voice.gate measure --codec DIR --packages DIR --phonemes FILE --speech HELD.npz [--count 120]

`--phonemes` is the output of `phonemes.py --held-out`. `measure` passes (exit code 0) if the round trip lowers
DistillMOS by at most 0.3 and raises Whisper base's word error by at most one point. Needs the `requirements.txt` of
this folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from recipes.voice.ears import Ears
from recipes.voice.judge import Said, Wave, judge, read_held
from recipes.voice.shared import fast_device, parser
from recipes.voice.speakers import held_out_speakers
from recipes.voice.speech import heard, open_studio, read_phonemes, write_utterances
from recipes.voice.teacher import RATE
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac

MAX_LOSS, MAX_ERRORS = 0.3, 1.0  # loss of DistillMOS; additional points of word error


def speak(teacher: Path, phonemes: Path, output: Path) -> None:
    """Generate the held-out sentences by held-out speakers in turn."""
    studio, _ = open_studio(teacher, fast_device(), batch_s=60.0)
    speakers = held_out_speakers()
    _, texts = read_phonemes(phonemes)
    items = [(text, text.number % len(speakers), speakers[text.number % len(speakers)]) for text in texts]
    spoken = [*studio.record(items), *studio.finish()]
    write_utterances(output, heard(sorted(spoken, key=lambda each: each.text)))


@torch.inference_mode()
def round_trip(codec: Dac, wave: Wave) -> Wave:
    codes = codec.encode(torch.from_numpy(wave))
    decoded: Wave = codec.decode(codes.unsqueeze(0))[0].float().numpy()[: len(wave)]
    return decoded


def main() -> int:
    options = parser(
        __doc__,
        ("speak", "measure"),
        teacher=Path | None,
        phonemes=Path,
        output=Path | None,
        codec=Path | None,
        packages=Path | None,
        speech=Path | None,
        count=120,
    ).parse_args()
    if options.verb == "speak":
        speak(options.teacher, options.phonemes, options.output)
        return 0
    held, ears = read_held(options.speech, options.phonemes, options.count), Ears(options.packages)
    teacher = judge((Said(each.text, str(each.speaker), each.wave, RATE) for each in held), ears)
    print("teacher", json.dumps(teacher), flush=True)
    dac = open_dac(options.codec, encodes=True)
    decoded = (Said(each.text, "", round_trip(dac, each.wave), RATE, reference=each.wave) for each in held)
    codec = judge(decoded, ears)
    print("codec", json.dumps(codec), flush=True)
    lost, more = teacher["distillmos"] - codec["distillmos"], codec["word_error"] - teacher["word_error"]
    print(
        f"{len(held)} utterances: the round trip lowers DistillMOS by {lost:.3f} and raises the word error by "
        f"{more:.2f} points"
    )
    return 0 if lost <= MAX_LOSS and more <= MAX_ERRORS else 1


if __name__ == "__main__":
    sys.exit(main())
