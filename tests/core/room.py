"""Requests for bookkeeping tests: no model, no clock, no device."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import Place, Request, StageSequence, Utterance
from s1_mini.core.speech import AudioOutput
from s1_mini.core.stage import Autoregressive, Chunks, Spec
from s1_mini.types import SamplingParams

CODES = Spec("int64", (2,))
SIZES = {"ttfa": (1, 2, 4, 8, 12), "balanced": (4, 4, 8, 16, 25), "throughput": (25,)}
MODEL = Autoregressive(name="model", input=CODES, output=CODES, slots=8, held_back=1)
CODEC = Chunks(
    name="codec",
    input=CODES,
    output=Spec("float32", rate=16_000),
    slots=16,
    sizes=SIZES,
    rows=(1, 2, 4, 8, 16),
    max_items=400,
    helped_size=4,
)

_numbers = count()


def request(
    arrived: float = 0.0, *, pieces: int = 1, positions: int = 20, shared: int = 0, prefix_key: str = "", **fields: Any
) -> Request:
    """A request whose utterances have prompts of `positions` positions."""
    speech = AudioOutput(
        OutputQueue(lambda: None), sample_rate=16_000, arrived=arrived, is_streamed=fields.pop("streams", False)
    )
    speech.first_sent = fields.pop("first_sent", None)
    speech.runs_dry = fields.pop("runs_dry", float("inf"))
    made = Request(next(_numbers), speech, SamplingParams(), arrived, float("inf"), **fields)
    prompt = PromptTokens(np.zeros((positions, 2), np.int64), shared, prefix_key)
    made.utterances = [Utterance(made, index, prompt, 100, Place(0, index)) for index in range(pieces)]
    return made


def sequence(made: Request, stage: int = 0, index: int = 0) -> StageSequence:
    """The sequence of an utterance at a stage, and its other sequences."""
    utterance = made.utterances[index]
    if not utterance.sequences:
        utterance.begin([CODES, CODES])
    return utterance.sequences[stage]


def with_items(made: Request, count: int, *, ended: bool = False) -> StageSequence:
    """The codec sequence of a request whose first utterance has generated `count` frames."""
    model, codec = sequence(made, 0), sequence(made, 1)
    model.items.extend(np.zeros((count, 2), np.int64))
    codec.available, codec.is_final = count, ended
    codec.next_unit = CODEC.next_unit(codec.progress)
    return codec
