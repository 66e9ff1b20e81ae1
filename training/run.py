"""The whole recipe, from texts to the voice that ships. Every stage saves what the next one needs.

python -m training.run --work DIR [--seconds 540] [--output src/s1_mini/default_model]

With `--seconds` it stops in time and goes on from there when called again, so it fits into short leases of a GPU.
The dual-AR model is only trained on a codec that has passed its gate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

MAX_CODEC_WER_RATIO = 1.3  # word error of the codec's round trip by the teacher's
PLAIN_S, ADVERSARIAL_S, MODEL_S = 1500.0, 900.0, 900.0


class Recipe:
    """Stages in order, within a time limit."""

    def __init__(self, work: Path, output: Path | None, seconds: float) -> None:
        self.work, self.output = work, output
        self.deadline = time.monotonic() + seconds

    def run(self) -> bool:
        """Do what there is time for; tell whether all is done."""
        self.work.mkdir(parents=True, exist_ok=True)
        texts = self.work / "texts.xz"
        if not texts.exists():
            self._stage("training.texts", "prepare", "--output", str(texts))
        with self._speech(texts):
            budgets = ("--plain-s", str(PLAIN_S), "--adversarial-s", str(ADVERSARIAL_S))
            if not (self.work / "gate.json").exists() and not self._trained("training.codec", *budgets):
                return False
        if not (self.work / "gate.json").exists():
            self._stage("training.gate", "--work", str(self.work), "--most", str(MAX_CODEC_WER_RATIO))
        if not (self.work / "tokens.npz").exists():
            self._stage("training.tokens", "--work", str(self.work))
        if not self._trained("training.model", "--total", str(MODEL_S)):
            return False
        if self.output is not None:
            self._stage("training.export", "--work", str(self.work), "--output", str(self.output))
            self._stage("training.evaluate", "--checkpoint", str(self.output), "--output", str(self.work / "report"))
        return True

    def _speech(self, texts: Path) -> _Background:
        """Let the teacher speak beside the training of the codec; terminated on leaving the `with` block."""
        workers = str(max(1, (os.cpu_count() or 2) - 2))
        command = ["make", "--texts", str(texts), "--output", str(self.work / "speech"), "--workers", workers]
        return _Background([sys.executable, "-m", "training.speech", *command])

    def _trained(self, module: str, *options: str) -> bool:
        left = self.deadline - time.monotonic() - 30  # to save
        if left < 30:
            return False
        self._stage(module, "--work", str(self.work), "--seconds", f"{left:.0f}", *options)
        return time.monotonic() < self.deadline - 30

    @staticmethod
    def _stage(module: str, *arguments: str) -> None:
        print(f"--- {module}", flush=True)
        subprocess.run([sys.executable, "-m", module, *arguments], check=True)


class _Background(subprocess.Popen[bytes]):
    """A process that ends with its `with` block."""

    def __exit__(self, *_: object) -> None:
        self.terminate()
        self.wait()


def main() -> int:
    """Run the recipe; exit code 3 says that there is more to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    return 0 if Recipe(options.work, options.output, options.seconds).run() else 3


if __name__ == "__main__":
    sys.exit(main())
