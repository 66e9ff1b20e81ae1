"""Stages whose tokens a vLLM worker generates: a unit's prompt is sent when it begins, and its tokens stream back."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s1_mini.core.messages import Begin, StepResult
from s1_mini.exceptions import ConfigurationError
from s1_mini.extras import require
from s1_mini.families.base import Placement
from s1_mini.families.cascade.config import NUM_COARSE, CascadeConfig
from s1_mini.families.cascade.on_vllm.packing import check_range, num_sampled_ids, pack_coarse, pack_semantic
from s1_mini.families.cascade.policies import CoarseWindows
from s1_mini.families.cascade.prompt import window_prompt
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.kernels.ranking import MIN_TEMPERATURE
from s1_mini.remote.tokens import TokenWorker
from s1_mini.runtime.stage import Pending, Stage
from s1_mini.version import __version__

WORKER = ("-P", "-m", "s1_mini.families.cascade.on_vllm.worker")  # -P: nothing is imported from the working directory
START_S = 600.0  # timeout for the start of vLLM, which took 14 to 28 s on two cores
SILENT_S = 120.0  # timeout for the next token while a worker has work
WAIT_S = 0.05  # how long a step waits for tokens before new and cancelled requests are handled
PROBE_S = 60.0  # timeout for `PROBE`
PROBE = """
from importlib.metadata import entry_points
from importlib.util import find_spec
print("vllm", find_spec("vllm") is not None)
if entry_points(group="vllm.general_plugins", name="s1_mini_cascade"):
    from s1_mini.version import __version__
    print("s1_mini", __version__)
"""


def check_vllm(config: CascadeConfig, placement: Placement, settings: CascadeSettings) -> None:
    """Raise `ConfigurationError` if stages cannot run on vLLM; the message has the command for a missing package."""
    for name, dtype in (("weights_dtype", placement.weights_dtype), ("kv_dtype", placement.kv_dtype)):
        if dtype is not None:
            value = str(dtype).removeprefix("torch.")
            raise ConfigurationError(
                f"{name}={value} has no effect on stages that run on vLLM (vllm_stages); use {name}=full"
            )
    if "semantic" in settings.vllm_stages:
        check_range(config)
    _check_environment(settings)


def _check_environment(settings: CascadeSettings) -> None:
    if settings.vllm_python is None:
        require(
            "vllm", "vllm_stages without S1_MINI_VLLM_PYTHON (the Python of an environment with vLLM, docs/vllm.md)"
        )
    python = _interpreter(settings)
    install = f'{python} -m pip install "s1-mini[vllm]"'
    try:
        probe = subprocess.run(  # noqa: S603 - the operator configures the interpreter
            [python, "-P", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        raise ConfigurationError(f"vllm_python={python} cannot be run: {reason.strip()[-200:]}") from None
    found = dict(line.split(maxsplit=1) for line in probe.stdout.splitlines() if " " in line)
    if found.get("vllm") != "True":
        raise ConfigurationError(f"vllm_stages: vLLM is not installed for {python}; run {install} (docs/vllm.md)")
    if found.get("s1_mini") != __version__:
        has = f"has s1-mini {found['s1_mini']}" if "s1_mini" in found else "lacks s1-mini"
        raise ConfigurationError(f"vllm_python: {python} {has}, but this process runs {__version__}; run {install}")


def _interpreter(settings: CascadeSettings) -> str:
    return str(settings.vllm_python or sys.executable)


def start_workers(
    directory: Path,
    placement: Placement,
    settings: CascadeSettings,
    *,
    slots: int,
    positions: Mapping[str, int],
    min_eos_p: float,
) -> dict[str, TokenWorker]:
    """Start the workers of all vLLM stages at the same time, for `slots` sequences of up to `positions` positions each.

    Raises `ConfigurationError` if a worker rejects its configuration, and `EngineNotReadyError` if one exits.
    """
    workers: dict[str, TokenWorker] = {}
    command = [_interpreter(settings), *WORKER]
    try:
        for stage in settings.vllm_stages:
            device, environment = placement.of(stage), dict(os.environ)
            if device.type == "cuda":
                names = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
                visible, index = [name.strip() for name in names if name.strip()], device.index or 0
                environment["CUDA_VISIBLE_DEVICES"] = visible[index] if index < len(visible) else str(index)
            opening = {
                "stage": stage,
                "checkpoint": str(directory.resolve()),
                "device": device.type,
                "dtype": str(placement.dtype).removeprefix("torch."),
                "slots": slots,
                "positions": positions[stage],
                "min_eos_p": min_eos_p,
            }
            workers[stage] = TokenWorker(
                stage, command, opening, environment=environment, start_s=START_S, silent_s=SILENT_S
            )
        for worker in workers.values():
            worker.wait_until_ready()
    except BaseException:
        for worker in workers.values():
            worker.close()
        raise
    return workers


class WorkedStage(Stage):
    """A stage in a worker process. A step takes the next token of each slot; a slot without a new token is late."""

    device = torch.device("cpu")  # where this stage's inputs and outputs are
    is_overlapped = False
    number: int  # index of the stage in its chain
    shape: tuple[int, ...]  # shape of an item

    def __init__(self, worker: TokenWorker, config: CascadeConfig) -> None:
        self.worker, self._config = worker, config
        self._sequences: dict[int, int] = {}  # by slot: the worker's number for the sequence
        self._tokens: dict[int, list[int]] = {}  # by slot: the tokens of the unit so far

    @abstractmethod
    def _prompt(self, begin: Begin) -> np.ndarray:
        """Return the packed ids [S] of a unit's prompt."""

    @abstractmethod
    def _item(self, tokens: Sequence[int]) -> tuple[np.ndarray | None, bool]:
        """Return the item that the last token completes, if any, and whether the unit ends."""

    def begin(self, begins: Sequence[Begin]) -> None:
        messages = [self._message(begin) for begin in begins]  # an invalid prompt raises before any prompt is sent
        for begin, message in zip(begins, messages, strict=True):
            self.drop([begin.slot])
            self._sequences[begin.slot] = self.worker.begin(message)
            self._tokens[begin.slot] = []

    def drop(self, slots: Sequence[int]) -> None:
        for slot in slots:
            number = self._sequences.pop(slot, None)
            if number is not None:
                self.worker.drop(number)

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        nothing = np.zeros((0, *self.shape), np.int64)
        values: list[np.ndarray] = []
        stops, valid, late = [], [], set()
        for slot, output in zip(
            slots, self.worker.take([self._sequences[slot] for slot in slots], WAIT_S), strict=True
        ):
            item, is_over, is_valid = None, False, True
            if output.token is None:
                late.add(slot)
            elif output.token >= num_sampled_ids(self._config, self.worker.name):
                is_valid = False
            else:
                self._tokens[slot].append(output.token)
                item, is_over = self._item(self._tokens[slot])
            if output.is_last or is_over:
                self.drop([slot])
            values.append(nothing if item is None else item[None])
            stops.append(is_over)
            valid.append(is_valid)
        result = StepResult(values, [len(value) for value in values], stops, valid, late)
        return lambda: result

    def close(self) -> None:
        self.worker.close()

    def _message(self, begin: Begin) -> dict[str, Any]:
        conditions, sampling = begin.conditions, begin.conditions.sampling
        origin = f"{conditions.seed} {conditions.utterance} {self.number} {begin.number}"
        return {
            "prompt": self._prompt(begin).tolist(),
            "steps": begin.steps,
            "temperature": sampling.temperature if sampling.temperature > MIN_TEMPERATURE else 0.0,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": int.from_bytes(blake2b(origin.encode(), digest_size=8).digest()) >> 1,
        }


class WorkedSemantic(WorkedStage):
    """The semantic model on vLLM: from text and a voice's semantic tokens to semantic tokens."""

    number, shape = 0, ()

    def _prompt(self, begin: Begin) -> np.ndarray:
        return pack_semantic(self._config, begin.inputs)

    def _item(self, tokens: Sequence[int]) -> tuple[np.ndarray | None, bool]:
        is_end = tokens[-1] == self._config.numbers.semantic_size
        return (None if is_end else np.array(tokens[-1])), is_end


class WorkedCoarse(WorkedStage):
    """The coarse model on vLLM: from semantic tokens to frames of two codes."""

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
