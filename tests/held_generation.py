"""An engine whose generation waits until the test releases it, so that "still running" does not depend on speed.

In this process: `with held_generation() as held: …; held.release()`. In a server started as a subprocess: start it with
`held_environment(path)`, and its generation waits while the file `path` exists.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from s1_mini.core.messages import Begin, StepResult
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.runtime.stage import Pending

FILE = "HELD_GENERATION_FILE"
POLL_INTERVAL_S = 0.005  # a held engine asks for the same step again and again
SOUNDS = 12  # frames after which every chunk profile has produced audio; needs a seed whose text is longer


class HeldGeneration:
    """Stops every sequence of the S1 language model after `frames` frames, as long as `is_held`.

    A held step is reported as late, so the scheduler asks for it again. The engine's threads never block: requests are
    cancelled and time out, references are encoded, and the watchdog sees a live thread.
    """

    def __init__(self, is_held: Callable[[], bool], frames: int) -> None:
        self._is_held, self._frames = is_held, frames
        self._made: WeakKeyDictionary[LanguageModel, dict[int, int]] = WeakKeyDictionary()
        self._begin, self._step = LanguageModel.begin, LanguageModel.step

    def install(self) -> None:
        """Replace `begin` and `step` of every S1 language model of this process."""
        begin, step = self._begin, self._step

        def begin_counted(stage: LanguageModel, begins: Sequence[Begin]) -> None:
            self._made.setdefault(stage, {}).update({each.slot: 0 for each in begins})
            begin(stage, begins)

        def step_or_wait(stage: LanguageModel, slots: Sequence[int], size: int) -> Pending:
            made = self._made.setdefault(stage, {})
            ready = [slot for slot in slots if not self._is_held() or made.get(slot, 0) < self._frames]
            if len(ready) < len(slots):
                time.sleep(POLL_INTERVAL_S)
            pending = step(stage, ready, size) if ready else None
            for slot in ready:
                made[slot] = made.get(slot, 0) + 1
            return pending if pending and len(ready) == len(slots) else _with_late(pending, ready, slots)

        LanguageModel.begin, LanguageModel.step = begin_counted, step_or_wait  # type: ignore[method-assign]

    def uninstall(self) -> None:
        """Restore the plain methods."""
        LanguageModel.begin, LanguageModel.step = self._begin, self._step  # type: ignore[method-assign]


def _with_late(pending: Pending | None, ready: Sequence[int], slots: Sequence[int]) -> Pending:
    def result() -> StepResult:
        made = pending() if pending else StepResult([], [], [], [])
        rows = {slot: row for row, slot in enumerate(ready)}
        values: list[Any] = [made.values[rows[slot]] if slot in rows else np.zeros(0, np.int64) for slot in slots]
        counts = [made.counts[rows[slot]] if slot in rows else 0 for slot in slots]
        stops = [slot in rows and made.stops[rows[slot]] for slot in slots]
        valid = [slot not in rows or made.valid[rows[slot]] for slot in slots]
        return StepResult(values, counts, stops, valid, {*made.late, *set(slots).difference(ready)})

    return result


class Held:
    """Generation that is held until `release`."""

    def __init__(self) -> None:
        self._released = threading.Event()

    def release(self) -> None:
        """Resume generation."""
        self._released.set()

    def is_held(self) -> bool:
        """Whether generation still waits."""
        return not self._released.is_set()


@contextmanager
def held_generation(frames: int = 0) -> Iterator[Held]:
    """Hold all S1 generation of this process after `frames` frames of each utterance, until released or left."""
    held = Held()
    generation = HeldGeneration(held.is_held, frames)
    generation.install()
    try:
        yield held
    finally:
        held.release()
        generation.uninstall()


def held_environment(path: Path) -> dict[str, str]:
    """Return variables for a subprocess that holds generation after `SOUNDS` frames while `path` exists.

    Python imports `sitecustomize` from the first folder of PYTHONPATH that has one: `tests/held`.
    """
    root = Path(__file__).resolve().parents[1]
    folders = [root / "tests" / "held", root / "tests", root / "src"]
    return {FILE: str(path), "PYTHONPATH": os.pathsep.join(map(str, folders))}


def install_from_environment() -> None:
    """Hold generation of this process while the file that `held_environment` named exists."""
    HeldGeneration(Path(os.environ[FILE]).exists, SOUNDS).install()
