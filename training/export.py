"""Make the voice that ships: the trained checkpoint in compact form, its built-in voices, its card.

python -m training.export --work DIR --output build/voice
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from s1_mini.checkpoint.convert import convert_checkpoint
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.types import Voice
from s1_mini.voices.library import FOLDER, write_voice
from training.speech import Speaker, synthesise

# Name, speaker, what is said, description. The first is the default.
VOICES = (
    ("robert", Speaker("rms"), "He put the letter on the table and opened the window.", "a man, plain"),
    ("anna", Speaker("slt"), "The morning train was full, so we walked along the river.", "a woman, plain"),
    ("alan", Speaker("awb"), "We met in the old library and talked about the weather.", "a man, Scottish"),
    (
        "clara",
        Speaker("slt", pitch=1.2),
        "She bought two apples and a loaf of bread.",
        "a woman, bright",
    ),
    (
        "henry",
        Speaker("rms", pitch=0.88, formants=0.95),
        "The road was long, but nobody was in a hurry.",
        "a man, deep",
    ),
)


def export(work: Path, output: Path) -> None:
    """Write the checkpoint of `work` to the new directory `output`, with voices and the card beside this file."""
    convert_checkpoint(work, output)
    codec = open_dac(output, encodes=True)
    (output / FOLDER).mkdir()
    with torch.inference_mode():
        for index, (name, speaker, text, description) in enumerate(VOICES):
            wave = torch.from_numpy(synthesise(text, speaker)).float() / 32768
            voice = Voice({"codes": codec.encode(wave)}, text)
            write_voice(output / FOLDER, name, voice, description=description, is_default=index == 0)
    shutil.copyfile(Path(__file__).with_name("CARD.md"), output / "CARD.md")


def main() -> None:
    """Export from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    export(options.work, options.output)


if __name__ == "__main__":
    main()
