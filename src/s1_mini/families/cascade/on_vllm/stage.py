"""Stages whose tokens a worker process generates: a prompt is sent when a unit begins; tokens stream back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from s1_mini.core.messages import Begin, StepResult
from s1_mini.families.cascade.config import NUM_COARSE, CascadeConfig
from s1_mini.families.cascade.kernels.choose import MIN_TEMPERATURE
from s1_mini.families.cascade.on_vllm.packing import num_chosen, pack_coarse, pack_semantic
from s1_mini.families.cascade.policies import CoarseWindows
from s1_mini.families.cascade.prompt import window_prompt
from s1_mini.remote.tokens import TokenWorker
from s1_mini.runtime.stage import Pending, SimpleStage

WAIT_S = 0.05  # for a token, between two checks for new and cancelled requests


class WorkedStage(SimpleStage):
    """A stage of one worker. A step takes one token of each slot that has one; the others are late."""

    device = torch.device("cpu")  # of its arrays
    is_overlapped = False
    number: int  # of the stage in its chain
    shape: tuple[int, ...]  # of an item

    def __init__(self, worker: TokenWorker, config: CascadeConfig) -> None:
        self.worker, self._config = worker, config
        self._sequences: dict[int, int] = {}  # worker's sequence number of each slot
        self._made: dict[int, list[int]] = {}  # tokens of a slot's unit

    @abstractmethod
    def _prompt(self, begin: Begin) -> np.ndarray:
        """Return the prompt of a unit: ids [S]."""

    @abstractmethod
    def _item(self, tokens: Sequence[int]) -> tuple[np.ndarray | None, bool]:
        """Return the item that the last token completes, if any, and whether the unit ends with it."""

    def begin(self, begins: Sequence[Begin]) -> None:
        """Send the prompts."""
        asked = [self._asked(begin) for begin in begins]
        for begin, message in zip(begins, asked, strict=True):
            self.drop([begin.slot])
            self._sequences[begin.slot] = self.worker.begin(message)
            self._made[begin.slot] = []

    def drop(self, slots: Sequence[int]) -> None:
        """Cancel the sequences in these slots."""
        for slot in slots:
            number = self._sequences.pop(slot, None)
            if number is not None:
                self.worker.drop(number)

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        """Take a token of every slot that has one."""
        nothing = np.zeros((0, *self.shape), np.int64)
        values: list[np.ndarray] = []
        stops, valid, late = [], [], set()
        for slot, made in zip(slots, self.worker.take([self._sequences[slot] for slot in slots], WAIT_S), strict=True):
            item, is_over, is_valid = None, False, True
            if made.token is None:
                late.add(slot)
            elif made.token >= num_chosen(self._config, self.worker.name):
                is_valid = False
            else:
                self._made[slot].append(made.token)
                item, is_over = self._item(self._made[slot])
            if made.is_last or is_over:
                self.drop([slot])
            values.append(nothing if item is None else item[None])
            stops.append(is_over)
            valid.append(is_valid)
        result = StepResult(values, [len(value) for value in values], stops, valid, late)
        return lambda: result

    def close(self) -> None:
        """End the worker."""
        self.worker.close()

    def _asked(self, begin: Begin) -> dict[str, Any]:
        sampling = begin.conditions.sampling
        return {
            "prompt": self._prompt(begin).tolist(),
            "steps": begin.steps,
            "temperature": sampling.temperature if sampling.temperature > MIN_TEMPERATURE else 0.0,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": self._seed(begin),
        }

    def _seed(self, begin: Begin) -> int:
        """Return the seed of a unit, derived from the request's seed and the numbers of utterance, stage and unit."""
        conditions = begin.conditions
        named = f"{conditions.seed} {conditions.utterance} {self.number} {begin.number}"
        return int.from_bytes(blake2b(named.encode(), digest_size=8).digest()) >> 1


class WorkedSemantic(WorkedStage):
    """Text and a voice's semantic tokens to semantic tokens."""

    number, shape = 0, ()

    def _prompt(self, begin: Begin) -> np.ndarray:
        return pack_semantic(self._config, begin.inputs)

    def _item(self, tokens: Sequence[int]) -> tuple[np.ndarray | None, bool]:
        is_end = tokens[-1] == self._config.numbers.semantic_size
        return (None if is_end else np.array(tokens[-1])), is_end


class WorkedCoarse(WorkedStage):
    """Semantic tokens to frames of two codes."""

    number, shape = 1, (NUM_COARSE,)

    def __init__(self, worker: TokenWorker, config: CascadeConfig, windows: CoarseWindows) -> None:
        super().__init__(worker, config)
        self._windows = windows

    def _prompt(self, begin: Begin) -> np.ndarray:
        return pack_coarse(self._config, window_prompt(self._windows, begin))

    def _item(self, tokens: Sequence[int]) -> tuple[np.ndarray | None, bool]:
        if len(tokens) % NUM_COARSE:
            return None, False
        return np.array(tokens[-NUM_COARSE:]) - np.arange(NUM_COARSE) * self._config.numbers.codebook_size, False
