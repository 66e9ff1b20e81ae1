"""The codec's gate: how much of the teacher's intelligibility its round trip costs.

python -m training.gate --work DIR --most 1.3

Writes `DIR/gate.json` if the word error of the round trip is at most `--most` times the teacher's; exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from training.evaluate import codec_gate
from training.speech import held_out_speakers
from training.texts import held_out_sentences

# Every sentence by so many speakers: over one casting of 100 sentences the ratio of one codec went from 0.9 to 1.5.
CASTINGS = 4


@torch.inference_mode()
def round_trip(codec: Dac, waves: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Encode and decode every int16 wave [samples] by itself."""
    decoded = []
    for wave in waves:
        codes = codec.encode(torch.from_numpy(wave).to(codec.device).float() / 32768)
        decoded.append(codec.decode(codes.unsqueeze(0))[0].float().cpu().numpy()[: len(wave)])
    return decoded


def main() -> int:
    """Measure, print, and let pass or not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--most", type=float, default=1.3)
    options = parser.parse_args()
    codec = open_dac(options.work, encodes=True, device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def trip(waves: list[Any]) -> list[np.ndarray]:
        return round_trip(codec, waves)

    sentences = held_out_sentences()["plain"] * CASTINGS
    gate = codec_gate(trip, sentences, held_out_speakers(), sample_rate=codec.sample_rate)
    print(gate, flush=True)
    if gate.ratio > options.most:
        print(f"the codec may not cost more than {options.most} times the teacher's word error", file=sys.stderr)
        return 1
    (options.work / "gate.json").write_text(json.dumps(gate._asdict()) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
