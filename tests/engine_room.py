"""Jobs for tests of the engine room's bookkeeping: no model, no clock, no device."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import torch

from s1_mini.audio.join import Joiner
from s1_mini.families.base import Prompt
from s1_mini.runtime.job import Job, Piece
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import SamplingParams

_numbers = count()


def job(
    arrived: float = 0.0, *, pieces: int = 1, columns: int = 20, shared: int = 0, prefix_key: str = "", **fields: Any
) -> Job:
    """A request whose pieces have prompts of `columns` columns."""
    outbox, joiner = Outbox(lambda: None), Joiner(sample_rate=16_000)
    numbers = {"arrived": arrived, "deadline": float("inf")}
    made = Job(next(_numbers), outbox, joiner, SamplingParams(), seed=0, **numbers, **fields)
    prompt = Prompt(torch.zeros(2, columns, dtype=torch.int64), shared, prefix_key)
    made.pieces = [Piece(made, index, prompt, max_frames=100) for index in range(pieces)]
    return made


def with_frames(made: Job, frames: int, *, ended: bool = False) -> Job:
    """The same job after its first piece has made `frames` frames."""
    piece = made.pieces[0]
    for number in range(frames):
        piece.frames.append(np.full(10, number))
    piece.finish_reason = "stop" if ended else None
    return made
