"""Time of a frame of S1, Audio8-TTS or Qwen3-TTS, by number of rows. On a GPU, CUDA events measure the time.

python -m benchmark.frames --checkpoint full-size --rows 1,64,128
python -m benchmark.frames --checkpoint full-size --rows 64,128,256 --voices 8
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmark.command import make_parser, numbers, report, run
from s1_mini.bench.report import describe_machine
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import LoadedModel
from s1_mini.families.codec_lm.model import FrameModel
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.find import find_checkpoint
from s1_mini.runtime.ahead import AheadCompiler
from s1_mini.runtime.loader import load
from s1_mini.runtime.rows import SPAN
from s1_mini.runtime.synthesizer import choose_threads
from s1_mini.types import SamplingParams

WARM_UP = 5  # frames
OF_VOICE = 5 / 6  # share of the initial positions that belong to a shared voice: 250 of the default 300


@dataclass(frozen=True)
class FrameTime:
    """Milliseconds of one frame of `rows` rows."""

    rows: int
    device_ms: float  # back-to-back replays of the frame's graph; without graphs the same as `step_ms`
    step_ms: float  # as in the engine, including reads by the host
    cpu_ms: float  # CPU time of the process in the cheapest step, for machines with other work

    @property
    def host_ms(self) -> float:
        """Overhead of the host."""
        return max(0.0, self.step_ms - self.device_ms)

    def data(self) -> dict[str, Any]:
        """Return the fields of the line of JSON."""
        return asdict(self) | {"host_ms": self.host_ms}


class FrameBench:
    """A language model whose slots have prompts of `context` positions and room for `frames` frames.

    Slots share the prefixes of `voices` voices; with 0 voices, each slot has its own prefix.
    """

    def __init__(self, model: FrameModel[Any], *, slots: int, context: int, frames: int, voices: int = 0) -> None:
        self._frames, self._device, self._voices = frames, model.device, voices
        self._steps = frames + WARM_UP + 1
        positions = -(-(context + self._steps) // SPAN) * SPAN
        self.stage = LanguageModel(model, slots=slots, positions=positions)
        self.stage.capture()
        # Keys and values are zeros, because the time does not depend on them.
        self._prompt = np.zeros((context, model.num_codebooks + 1), np.int64)

    def measure(self, rows: int) -> FrameTime:
        """Time frames of `rows` rows, once as the engine runs them and once launched back to back."""
        slots = range(rows)
        cpu_s: list[float] = []

        def step() -> None:
            begun = time.process_time()
            self.stage.step(slots, 1)()
            cpu_s.append(time.process_time() - begun)

        self._begin(slots)
        step_ms = self._time(step)
        self._begin(slots)
        is_captured = self.stage.replay(rows)
        device_ms = self._time(lambda: self.stage.replay(rows)) if is_captured else step_ms
        return FrameTime(rows, device_ms, step_ms, 1000 * min(cpu_s))

    def _begin(self, slots: Sequence[int]) -> None:
        length = len(self._prompt)
        for slot in slots:
            conditions = Conditions(SamplingParams(), seed=slot, utterance=0, max_steps=self._steps, voice={})
            self.stage.begin([Begin(slot, 0, self._prompt, None, 0, self._steps, 1, 0, length, conditions)])
        saved = [self.stage.save(slot, int(OF_VOICE * length)) for slot in slots[: self._voices]]
        for slot in slots[len(saved) :] if saved else ():
            self.stage.load(slot, saved[slot % len(saved)])

    def _time(self, work: Callable[[], object]) -> float:
        """Return the mean milliseconds per call."""
        for _ in range(WARM_UP):
            work()
        if self._device.type != "cuda":
            begun = time.perf_counter()
            for _ in range(self._frames):
                work()
            return 1000 * (time.perf_counter() - begun) / self._frames
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(self._frames):
            work()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / self._frames


@torch.inference_mode()
def measure_frames(
    loaded: LoadedModel,
    rows: Sequence[int],
    *,
    context: int,
    frames: int,
    voices: int = 0,
    prepare: Callable[[LanguageModel], object] = lambda _: None,
) -> list[FrameTime]:
    """Measure `frames` frames, after `context` positions, for each number of rows.

    All rows share `voices` voices; with 0 voices, each row has its own. A CPU uses as many threads as the engine would.
    `prepare` is called once, with the stage, before the first measurement. Raises `CheckpointMismatchError` for other
    model families.
    """
    model, threads = getattr(loaded, "model", None), torch.get_num_threads()
    if not isinstance(model, FrameModel):
        raise CheckpointMismatchError("only S1 and Qwen3-TTS checkpoints have frames of codes")
    choose_threads(loaded.chain(1, SPAN), loaded.num_bytes).enter(0)
    try:
        bench = FrameBench(model, slots=max(rows), context=context, frames=frames, voices=voices)
        prepare(bench.stage)
        return [bench.measure(count) for count in rows]
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=numbers, default=(1, 4, 8), help="numbers of concurrent rows, such as 1,64,128")
    parser.add_argument("--context", type=int, default=300, help="initial context of each row, in positions")
    parser.add_argument("--frames", type=int, default=100, help="number of frames to time")
    parser.add_argument(
        "--voices", type=int, default=0, help="number of voices that the rows share; 0: each row has its own"
    )
    options = parser.parse_args()
    config = EngineConfig(checkpoint_path=find_checkpoint(options.checkpoint).directory, device=options.device)
    speaker = load(config)
    sizes = {"context": options.context, "voices": options.voices}
    times = measure_frames(
        speaker.loaded,
        options.rows,
        frames=options.frames,
        prepare=lambda stage: AheadCompiler(speaker, [stage], config, in_background=False),
        **sizes,
    )
    found = [each.data() for each in times]
    facts = {"precision": speaker.precision.value, "kernels": speaker.kernels.value, **sizes, "frames": found}
    rows = [[str(each["rows"]), *list(each.values())[1:]] for each in found]
    report(["rows", "device ms", "step ms", "cpu ms", "host ms"], rows, describe_machine(speaker.device.value) | facts)


if __name__ == "__main__":
    sys.exit(run(main))
