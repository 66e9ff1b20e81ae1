"""A family unlike S1 in every respect: two autoregressive stages, the second of which begins before the first ends;
float frames, two a step, 13.3 ms each; a vocoder that looks ahead and flushes; voices that are a vector; 24 kHz.

Its numbers are arithmetic, not speech, but each depends on all its inputs: text, voice, seed, and earlier output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from s1_mini.core.messages import Begin, Prefill, Saved, StepResult
from s1_mini.core.stage import Autoregressive, Chunks, Progress, Spec, StagePolicy, Unit
from s1_mini.runtime.stage import Pending, Stage

SAMPLE_RATE, SAMPLES = 24_000, 320  # a second, a frame
WIDTH, WINDOW, FRAMES_A_TOKEN = 8, 4, 2
PROMPT = Spec("int64", (1,))
TOKENS = Spec("int64")
FRAMES = Spec("float32", (WIDTH,), rate=SAMPLE_RATE / SAMPLES)
WAVE = Spec("float32", rate=SAMPLE_RATE)


@dataclass(frozen=True, kw_only=True)
class Windows(StagePolicy):
    """Autoregressive over windows of tokens; a window may begin as soon as its tokens are available."""

    def next_unit(self, progress: Progress) -> Unit | None:
        start, rest = progress.consumed, progress.available - progress.consumed
        if rest < WINDOW and not (progress.is_final and rest):
            return None
        tokens = min(WINDOW, rest)
        return Unit(start, start + tokens, tokens, steps=tokens, prefill=tokens, past=1)

    def is_done(self, progress: Progress) -> bool:
        return progress.is_final and progress.consumed >= progress.available


def policies(slots: int) -> tuple[StagePolicy, ...]:
    return (
        Autoregressive(name="text", input=PROMPT, output=TOKENS, slots=slots, held_back=1),
        Windows(name="frames", input=TOKENS, output=FRAMES, slots=max(1, slots // 2), holds="unit"),
        Chunks(
            name="vocoder",
            input=FRAMES,
            output=WAVE,
            slots=2 * slots,
            holds="unit",
            sizes={"ttfa": (2, 4, 8), "balanced": (8, 16), "throughput": (32,)},
            context=1,
            look_ahead=2,
            rows=(1, 2, 4, 8),
            max_items=64,
        ),
    )


class ToyStage(Stage):
    """Shared by the three stages: all state is in slots; no graphs."""

    device = torch.device("cpu")
    is_overlapped = False

    def __init__(self, *, is_overlapped: bool = False) -> None:
        self.begun: dict[int, Begin] = {}
        self.steps: dict[int, int] = {}
        self.is_overlapped = is_overlapped

    def begin(self, begins: Sequence[Begin]) -> None:
        for begin in begins:
            self.begun[begin.slot], self.steps[begin.slot] = begin, 0

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - any size
        made = []
        for slot in slots:
            made.append(self.make(self.begun[slot], self.steps[slot], slot))
            self.steps[slot] += 1
        values, stops = [value for value, _ in made], [stop for _, stop in made]
        result = StepResult(
            values, [len(value) for value in values], stops, [bool(np.isfinite(v).all()) for v in values]
        )
        return lambda: result

    def make(self, begin: Begin, step: int, slot: int) -> tuple[np.ndarray, bool]:
        raise NotImplementedError


class Text(ToyStage):
    """Prompt to tokens."""

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.read: dict[int, int] = {}  # a sum of the tokens that a slot has read
        self.num_read = 0

    def begin(self, begins: Sequence[Begin]) -> None:
        super().begin(begins)
        self.read |= {begin.slot: 7 for begin in begins}

    def prefill(self, parts: Sequence[Prefill]) -> None:
        for part in parts:
            self.num_read += part.stop - part.start
            for item in self.begun[part.slot].inputs[part.start : part.stop, 0]:
                self.read[part.slot] = (31 * self.read[part.slot] + int(item)) % 65_521

    def save(self, slot: int, positions: int) -> Saved:
        return Saved(self.read[slot], positions, 8)

    def load(self, slot: int, saved: Saved) -> None:
        self.read[slot] = saved.state

    def make(self, begin: Begin, step: int, slot: int) -> tuple[np.ndarray, bool]:
        last = int(begin.inputs[-1, 0])
        self.read[slot] = (31 * self.read[slot] + last + 17 * step + begin.conditions.seed) % 65_521
        # Without temperature it never stops by itself.
        if step > 5 and self.read[slot] % 23 == 0 and begin.conditions.sampling.temperature > 0:
            return np.zeros(0, np.int64), True
        return np.array([self.read[slot]]), False


class Frames(ToyStage):
    """Tokens to frames, two a step, by the voice vector and the last frame."""

    def make(self, begin: Begin, step: int, slot: int) -> tuple[np.ndarray, bool]:
        voice = np.asarray(begin.conditions.voice.get("speaker", np.zeros(WIDTH)), np.float32)
        past = self.begun[slot].past
        before = past[-1] if len(past) else np.zeros(WIDTH, np.float32)
        base = np.float32(begin.inputs[step] % 97) / 97
        frames = []
        for part in range(FRAMES_A_TOKEN):
            before = np.tanh(
                0.5 * before + voice + base + np.float32(0.01) * part + np.arange(WIDTH, dtype=np.float32) / 10
            )
            frames.append(before)
        made = np.stack(frames).astype(np.float32)
        self.begun[slot] = self.begun[slot]._replace(past=made)
        return made, False


class Vocoder(ToyStage):
    """Frames to audio; the audio of a frame depends on the frame before and the two after it."""

    def make(self, begin: Begin, step: int, slot: int) -> tuple[np.ndarray, bool]:  # noqa: ARG002
        before, after = np.zeros((1 - begin.context, WIDTH)), np.zeros((2, WIDTH))
        padded = np.concatenate([before, begin.inputs, after]).astype(np.float32)
        means = np.stack([padded[i : i + 4].mean() for i in range(begin.consumes)])
        return np.repeat(means, SAMPLES).astype(np.float32) * np.float32(0.5), False
