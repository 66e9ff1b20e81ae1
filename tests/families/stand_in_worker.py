"""A stage worker without vLLM: the same pipes and packed ids, served by s1_mini's own models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.base import Placement
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.on_vllm.packing import unpack_coarse, unpack_semantic
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.remote.token_server import Begun, serve
from s1_mini.types import SamplingParams


class StandIn:
    """A slot of our own stage for each sequence; the lowest free slot first."""

    def __init__(self, opening: Mapping[str, Any]) -> None:
        placement = Placement(torch.device("cpu"), torch.float32, torch.float32)
        settings = CascadeSettings(min_eos_p=opening["min_eos_p"])
        loaded, slots = LoadedCascade(Path(opening["checkpoint"]), placement, settings), opening["slots"]
        self._config, self._is_semantic = loaded.config, opening["stage"] == "semantic"
        self._stage = loaded.chain(slots, opening["positions"]).stages[0 if self._is_semantic else 1]
        self._stage._prompt = lambda begin: begin.inputs
        self._free, self._slots, self._left = list(range(slots)), dict[int, int](), dict[int, int]()

    @property
    def has_work(self) -> bool:
        """Whether there is a sequence."""
        return bool(self._slots)

    @torch.inference_mode()
    def begin(self, number: int, asked: Mapping[str, Any]) -> None:
        """Prefill its prompt."""
        sampling = SamplingParams(temperature=asked["temperature"], top_p=asked["top_p"], top_k=asked["top_k"])
        conditions = Conditions(sampling, asked["seed"], 0, asked["steps"], {})
        self._free.sort()
        slot, prompt = self._free.pop(0), self._unpack(np.array(asked["prompt"]))
        assert len(prompt) + asked["steps"] <= self._stage._positions + 1
        self._stage.begin([Begin(slot, 0, prompt, None, 0, asked["steps"], 1, 0, 0, conditions)])
        self._stage.prefill([Prefill(slot, 0, len(prompt) - 1)])
        self._slots[number], self._left[number] = slot, asked["steps"]

    def _unpack(self, ids: np.ndarray) -> np.ndarray:
        if not self._is_semantic:
            return unpack_coarse(self._config, ids)
        is_pair, text, voice = unpack_semantic(self._config, ids)
        assert is_pair.tolist() == [True] * (len(ids) - 1) + [False]
        return np.stack([text, voice], axis=1)

    def drop(self, number: int) -> None:
        """Free its slot."""
        if number in self._slots:
            self._free.append(self._slots.pop(number))

    @torch.inference_mode()
    def step(self) -> Iterator[Begun]:
        """Generate a token of each sequence."""
        numbers, slots = list(self._slots), list(self._slots.values())
        result = self._stage.step(slots, 1)()
        for row, number in enumerate(numbers):
            token = int(result.values[row][0] if self._is_semantic else self._coarse(result, row))
            self._left[number] -= 1
            is_over = result.stops[row] or not self._left[number]
            if is_over:
                self.drop(number)
            yield number, [token], is_over

    def _coarse(self, result: Any, row: int) -> int:
        book = result.counts[row]
        return result.values[row][0][book] + book * self._config.numbers.codebook_size


def open_stand_in(opening: Mapping[str, Any]) -> tuple[StandIn, Mapping[str, Any]]:
    """Load the checkpoint."""
    torch.set_num_threads(1)
    return StandIn(opening), {}


if __name__ == "__main__":
    serve(open_stand_in)
