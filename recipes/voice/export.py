"""Export the built-in checkpoint: the trained weights in eight bits, its voices, its model card.

python -m recipes.voice.export --work DIR --teacher DIR --output build/voice [--encoder-id ID]

`--work` has the finished codec and model; `--teacher` is the output of `packages.py`. Every voice is an encoded
utterance of the teacher. Listeners prefer a lower temperature of both transformers, mainly of the depth transformer; it
is folded into the weights, so that it applies with all settings. The codec's config gets a drive, which raises the
volume, and a ceiling for the peaks. After training of the decoder alone, give the built-in codec's `encoder_id` as
`--encoder-id`, so that stored voices remain valid. Needs hibari-tts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.voice.phonemes import write
from recipes.voice.shared import fast_device, parser
from recipes.voice.speakers import NAMED, Half, Speaker
from recipes.voice.speech import heard, open_studio, read_phonemes
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.base import Conversion
from s1_mini.packaging.write import convert_checkpoint
from s1_mini.types import Voice
from s1_mini.voices.library import FOLDER, write_voice

# Factors of the logits of the backbone and of the depth transformer (docs/internals/voice_measured.md).
COLDER = {"output.weight": 1.25, "fast_output.weight": 1.6}
# With these (`DacConfig`) all voices are at -16.0 to -16.7 LUFS, and no sample is beyond -1.1 dB.
BOUND = {"drive": 1.28, "ceiling": 0.88}

# Reference sentence and description of each voice. The sentence is the one, out of five, whose clone had the best
# DistillMOS (mean of three sentences, 3.7 to 4.3; oliver's out of twelve, 40 sentences). `emily` is left out (2.9 at
# best). The first voice is the default.
REFERENCES = {
    "julia": ("Yesterday evening, the whole family sat together and played cards.", "a woman, American, even"),
    "clara": ("She bought two apples, a loaf of bread, and a very small cake.", "a woman, British, clear"),
    "anna": ("We met in the old library, and nobody spoke about the weather.", "a woman, American, warm"),
    "grace": ("We fixed the roof before the storm, and it held all winter long.", "a woman, British, gentle"),
    "robert": ("He put the letter on the table, opened the window, and sat down.", "a man, American, plain"),
    "alan": ("There is a garden behind the house, where my mother grows roses.", "a man, British, calm"),
    "oliver": ("She bought two apples, a loaf of bread, and a very small cake.", "a man, British, bright"),
    "thomas": ("I would like to tell you a short story about the sea.", "a man, American, rough"),
    "henry": ("The road was long and empty, but nobody was in a hurry to arrive.", "a man, American, deep"),
}
# Voices with the prosody of another one: bm_fable's own ends most sentences with a breath of 0.7 s.
PROSODY = {"oliver": "bm_george"}


def references(teacher: Path) -> dict[str, Tensor]:
    """Return the reference of each voice, float32 [T] at 24 kHz."""
    studio, _ = open_studio(teacher, fast_device(), batch_s=60.0)
    with tempfile.TemporaryDirectory() as folder:
        phonemes = Path(folder) / "phonemes.xz"
        write([text for text, _ in REFERENCES.values()], phonemes)
        _, texts = read_phonemes(phonemes)
    names = list(REFERENCES)
    halves = {name: (NAMED[name], PROSODY.get(name, NAMED[name])) for name in names}
    speakers = [Speaker(Half((sound,), (1.0,)), Half((talk,), (1.0,))) for sound, talk in halves.values()]
    items = [(text, place, who) for place, (text, who) in enumerate(zip(texts, speakers, strict=True))]
    said = heard([*studio.record(items), *studio.finish()])
    return {names[place]: torch.from_numpy(wave).float() / 32768 for _, place, wave in said}


def finished(work: Path, output: Path, encoder_id: str = "") -> None:
    """Copy the checkpoint of `work` to `output` with a lower temperature, and with `BOUND` in the codec's config."""
    shutil.copytree(work, output, ignore=shutil.ignore_patterns("*.safetensors", "*.pt", "tokens", "speech"))
    shutil.copyfile(work / "codec.safetensors", output / "codec.safetensors")
    model = load_file(work / "model.safetensors")
    for name, factor in COLDER.items():
        model[name] = (model[name].float() * factor).to(model[name].dtype)
    save_file(model, output / "model.safetensors")
    config = output / "codec_config.json"
    ids = {"encoder_id": encoder_id} if encoder_id else {}
    config.write_text(json.dumps(json.loads(config.read_text()) | BOUND | ids), encoding="utf-8")


def export(work: Path, output: Path, waves: dict[str, Tensor], encoder_id: str = "") -> None:
    """Write the checkpoint of `work` to the new directory `output`, with voices and this folder's model card."""
    with tempfile.TemporaryDirectory() as folder:
        finished(work, Path(folder) / "finished", encoder_id)
        convert_checkpoint(Path(folder) / "finished", output, Conversion(precision="int8", codec_precision="int8"))
    codec = open_dac(output, encodes=True)
    (output / FOLDER).mkdir()
    with torch.inference_mode():
        for index, (name, (text, description)) in enumerate(REFERENCES.items()):
            voice = Voice({"codes": codec.encode(waves[name])}, text)
            write_voice(output / FOLDER, name, voice, description=description, is_default=index == 0)
    shutil.copyfile(Path(__file__).with_name("CARD.md"), output / "CARD.md")


if __name__ == "__main__":
    given = parser(__doc__, work=Path, teacher=Path, output=Path, encoder_id="").parse_args()
    export(given.work, given.output, references(given.teacher), given.encoder_id)
