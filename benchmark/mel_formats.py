"""Quality of a mel model in narrow number formats, teacher-forced: distance of the mel, MCD and PESQ.

Every format is fed, step by step, the frames that float32 generated, so that differences do not accumulate. The same
vocoder in float32 converts both mels to audio. PESQ needs the package `pesq`, and audio in which it detects speech; a
mean opinion score (DNSMOS, DistillMOS) would need trained weights.

python -m benchmark.mel_formats --checkpoint speecht5
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmark.command import make_parser, report, run
from benchmark.mel_baseline import FIFTY, MAX_CHARACTERS, NEVER, steps_of
from s1_mini.bench.report import describe_machine
from s1_mini.families.base import Placement
from s1_mini.families.mel.loaded import LoadedMel, open_mel
from s1_mini.families.mel.settings import MelSettings
from s1_mini.families.mel.verify import open_state, step_alone
from s1_mini.families.mel.voice import SPEAKER
from s1_mini.families.registry import family_of
from s1_mini.runtime.loader import choose_device
from s1_mini.text.tidy import tidied
from s1_mini.voices.library import CheckpointVoices

FP8 = torch.float8_e4m3fn
LIMIT = 0.05  # share of the mel's standard deviation up to which the quality counts as equal
NUM_CEPSTRA = 13


class Format(NamedTuple):
    """Number formats of the layers."""

    name: str
    dtype: torch.dtype = torch.bfloat16
    weights: torch.dtype | None = None
    kv: torch.dtype | None = None


FORMATS = (
    Format("float16", torch.float16),
    Format("bfloat16"),
    Format("float32, int8 weights", torch.float32, torch.int8),
    Format("bfloat16, int8 weights", weights=torch.int8),
    Format("float32, fp8 weights", torch.float32, FP8),
    Format("bfloat16, fp8 weights", weights=FP8),
    Format("bfloat16, fp8 keys and values", kv=FP8),
)


class Quality(NamedTuple):
    """Distance of a format from float32."""

    name: str
    distance: float  # root mean square of the difference, divided by the standard deviation of float32's mel
    mcd_db: float
    pesq: float | None

    @property
    def is_within(self) -> bool:
        """Whether the distance is within the limit."""
        return self.distance <= LIMIT


def mel_cepstral_distortion(one: np.ndarray, other: np.ndarray) -> float:
    """Return the distortion (Kubichek 1993) of two mels [F, M] of decadic logarithms, in dB, without the level."""
    bins = one.shape[1]
    basis = np.cos(np.pi * np.outer(np.arange(1, NUM_CEPSTRA + 1), np.arange(bins) + 0.5) / bins) * 2 / bins
    difference = math.log(10) * (one - other) @ basis.T
    return float(10 / math.log(10) * np.sqrt(2 * (difference**2).sum(1)).mean())


def pesq_of(reference: np.ndarray, wave: np.ndarray, rate: int) -> float | None:
    """Return the wide-band PESQ of a wave, or None if it cannot be computed."""
    if importlib.util.find_spec("pesq") is None or rate != 16_000:
        return None
    from pesq import NoUtterancesError, pesq  # type: ignore[import-not-found,unused-ignore]

    try:
        return float(pesq(rate, reference, wave, "wb"))
    except NoUtterancesError:
        return None


def open_format(directory: Path, device: torch.device, chosen: Format) -> LoadedMel:
    """Open a checkpoint in a format, without dropout and without a stop threshold that can be reached."""
    placement = Placement(device, chosen.dtype, torch.float32, chosen.weights, chosen.kv)
    return open_mel(
        directory, placement, MelSettings(prenet_dropout="off", stop_threshold=NEVER, max_length_ratio=100.0)
    )


@torch.inference_mode()
def along(loaded: LoadedMel, case: dict[str, Tensor], steps: int, frames: Tensor | None) -> Tensor:
    """Return the mel [F, M] of `steps` steps, teacher-forced with `frames` [S, M] if they are given."""
    model, rows = loaded.model, []
    state = open_state(model, case, steps)
    for step in range(steps):
        if frames is not None:
            state.frame[0] = frames[step]
        rows.append(step_alone(model, state))
    return torch.stack(rows)[:, :-2].reshape(-1, model.config.num_bins)


def measure(directory: Path, device: torch.device, text: str) -> list[Quality]:
    """Compare all formats with float32."""
    plain = open_format(directory, device, Format("float32", torch.float32))
    voice = CheckpointVoices.open(directory, family_of(directory).describe(directory).voice).default
    size = plain.model.config.speaker_size
    speaker = torch.zeros(size) if voice is None else voice.tensors[SPEAKER]
    tokens = plain.tokenizer.encode(tidied(text, MAX_CHARACTERS))
    case, steps = {"tokens": torch.tensor(tokens), "speaker": speaker}, steps_of(text, plain, 1000)
    wanted = along(plain, case, steps, None)
    made = plain.model.config.frames_per_step
    given = torch.cat((torch.zeros_like(wanted[:1]), wanted[made - 1 :: made][:-1]))
    mel, rate = plain.model.postnet(wanted), plain.vocoder.config.sample_rate
    sound = plain.vocoder.speak(mel).cpu().numpy()
    found = []
    for chosen in FORMATS:
        other = plain.model.postnet(along(open_format(directory, device, chosen), case, steps, given))
        distance = float((other - mel).square().mean().sqrt() / mel.std())
        wave = plain.vocoder.speak(other).cpu().numpy()
        mels = mel.cpu().numpy(), other.cpu().numpy()
        found.append(Quality(chosen.name, distance, mel_cepstral_distortion(*mels), pesq_of(sound, wave, rate)))
    return found


def main() -> None:
    """Measure, print a table and a line of JSON, and write the JSON to `--output` if given."""
    parser = make_parser(__doc__)
    parser.add_argument("--text", default=FIFTY, help="text to synthesize")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    if options.checkpoint is None:
        parser.error("--checkpoint is required")
    device = torch.device(choose_device(options.device).value)
    found = measure(options.checkpoint, device, options.text)
    rows = [[each.name, 100 * each.distance, each.mcd_db, each.pesq, str(each.is_within)] for each in found]
    result = {"facts": describe_machine(str(device)), "formats": [each._asdict() for each in found]}
    head = ["format", "mel differs %", "MCD dB", "PESQ", f"within {100 * LIMIT:.0f} %"]
    report(head, rows, result, options.output)


if __name__ == "__main__":
    sys.exit(run(main))
