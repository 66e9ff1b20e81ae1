"""The whole recipe, from texts to the voice that ships. Every stage saves what the next one needs.

python -m training.run --work DIR [--seconds 540] [--utterances 1300000] [--output build/voice]

With `--seconds` training stops in time and goes on from there when called again, so that it fits into short leases of a
GPU; what runs on the cores (texts, gate, export, evaluation) takes the time it takes. The output is a new directory.
The dual-AR model is only trained on a codec that has passed its gate. 1,300,000 utterances take 145 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

MAX_CODEC_WER_RATIO = 1.3  # word error of the codec's round trip by the teacher's
UTTERANCES = 1_300_000
SAVING_S = 30.0  # kept back at the end of a limited call


class Recipe:
    """Stages in order, within a time limit."""

    def __init__(self, work: Path, output: Path | None, seconds: float, utterances: int) -> None:
        self.work, self.output, self.utterances = work, output, utterances
        self.deadline = time.monotonic() + seconds

    def run(self) -> bool:
        """Do what there is time for; tell whether all is done."""
        self.work.mkdir(parents=True, exist_ok=True)
        if not (self.work / "texts.xz").exists():
            self._stage("training.texts", "prepare", "--output", str(self.work / "texts.xz"))
        with self._beside("training.speech", "make", *self._plan_of_speech()):
            if not (self.work / "gate.json").exists():
                if not self._trained("training.codec"):
                    return False
                self._stage("training.gate", *self._work, "--most", str(MAX_CODEC_WER_RATIO))
            with self._beside("training.tokens", *self._work, "--follow", "inf"):
                if not (self._trained("training.decoder") and self._trained("training.model")):
                    return False
        if self.output is not None:
            if not self.output.exists():
                self._stage("training.export", *self._work, "--output", str(self.output))
            self._stage("training.evaluate", "--checkpoint", str(self.output), "--output", str(self.work / "report"))
        return True

    @property
    def _work(self) -> tuple[str, str]:
        return "--work", str(self.work)

    def _plan_of_speech(self) -> tuple[str, ...]:
        workers = max(1, (os.cpu_count() or 2) - 2)
        folders = ("--texts", str(self.work / "texts.xz"), "--output", str(self.work / "speech"))
        return *folders, "--workers", str(workers), "--count", str(self.utterances)

    def _trained(self, module: str) -> bool:
        """Train until the end of the module's schedule or of the time; tell which."""
        left = self.deadline - time.monotonic() - SAVING_S
        if left < SAVING_S:
            return False
        self._stage(module, *self._work, "--seconds", f"{left:.0f}")
        return time.monotonic() < self.deadline - SAVING_S

    @staticmethod
    def _stage(module: str, *arguments: str) -> None:
        print(f"--- {module}", flush=True)
        subprocess.run([sys.executable, "-m", module, *arguments], check=True)

    @staticmethod
    def _beside(module: str, *arguments: str) -> _Background:
        """Let a module work beside the training; it is terminated on leaving the `with` block."""
        return _Background([sys.executable, "-m", module, *arguments])


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
    parser.add_argument("--utterances", type=int, default=UTTERANCES)
    options = parser.parse_args()
    try:
        return 0 if Recipe(options.work, options.output, options.seconds, options.utterances).run() else 3
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[2]} did not succeed; what it says stands above", file=sys.stderr)
        return error.returncode


if __name__ == "__main__":
    sys.exit(main())
