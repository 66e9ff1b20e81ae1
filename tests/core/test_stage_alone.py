"""A single stage of a chain, run in an engine of its own, generates the same output as in the full chain."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from s1_mini.byte_cache import ByteCache
from s1_mini.core.items import Items
from s1_mini.core.messages import Begin
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import Place, Request, Utterance
from s1_mini.core.speech import Outlet
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.runtime.engine_core import EngineCore, Threads
from s1_mini.runtime.stage import Stage
from s1_mini.types import SamplingParams
from tests.core.conftest import numbers, settle
from tests.toy import stages
from tests.toy.stages import Frames, Text, ToyStage, policies

PROMPT = np.arange(1, 12)[:, None]
TOKENS = np.arange(11) * 37


def make(stage: Stage, index: int, parts: Sequence[np.ndarray] | None, utterance: int = 3) -> np.ndarray:
    """Run one stage of the toy model alone, on input that arrives in parts or on the prompt."""
    policy, queue, now = policies(4)[index], OutputQueue(lambda: None), time.monotonic()
    core = EngineCore([policy], [stage], WaitingLine(9), ByteCache(10**6), Threads({"alone": (0,)}))
    core.start()
    outlet = Outlet(queue, policy.output, arrived=now, is_streamed=True)
    request = Request(next(numbers), outlet, SamplingParams(), now, float("inf"), front=utterance)
    arriving = None if parts is None else Items(policy.input)
    place, prompt = Place(1, utterance), PromptTokens(PROMPT)
    said = Utterance(request, utterance, prompt, 400, place, arriving=arriving, has_arrived=parts is None)
    core.submit(request)
    core.scheduler.open(request, [said])
    for part in parts or ():
        core.scheduler.arrive(said, part, is_final=False)
        time.sleep(0.001)
    if parts is not None:
        core.scheduler.arrive(said, TOKENS[:0], is_final=True)
    made = np.concatenate([chunk.audio for chunk in queue])
    settle(core)
    core.stop()
    return made


class Short(Frames):
    """A stage whose units stop after two steps."""

    def make(self, begin: Begin, step: int, slot: int) -> tuple[np.ndarray, bool]:
        """Generate frames, and report when the unit is complete."""
        return super().make(begin, step, slot)[0], step == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_the_output_does_not_depend_on_how_the_input_arrives(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = make(Frames(is_overlapped=ahead), 1, np.split(TOKENS, [1, 4, 5, 9]))

    monkeypatch.setattr(stages, "WINDOW", len(TOKENS))  # one unit, which does not depend on an earlier one
    whole = make(Frames(), 1, [TOKENS])
    assert len(whole) == 2 * len(TOKENS)
    assert np.array_equal(parts, whole)


@pytest.mark.parametrize("kind", [Text, Short])
def test_a_step_launched_ahead_of_a_stop_is_not_delivered(kind: type[ToyStage]) -> None:
    index, parts = (0, None) if kind is Text else (1, [TOKENS])
    expected = make(kind(), index, parts)

    ahead = make(kind(is_overlapped=True), index, parts)

    assert 0 < len(expected) < (2 * len(TOKENS) if parts else 400), "it stopped by itself"
    assert np.array_equal(ahead, expected)
