"""The cascade's semantic and coarse stages in the engine and in vLLM: the same random weights, prompts and lengths.

For each number of concurrent sequences, it measures the seconds until each has its first token, then tokens per second,
and both figures also by CPU time. Runs of the two alternate, and the best run of each counts, because other load on the
machine can only slow a run down. Linux only.

python -m benchmark.vllm_stages --size small --vllm-python /opt/vllm/bin/python
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch

from benchmark.cascade import random_checkpoint
from benchmark.command import make_parser, numbers, report, run
from s1_mini.bench.report import load_average
from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.base import Placement, StageChain
from s1_mini.families.cascade.config import CascadeConfig
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.on_vllm.stage import WorkedStage
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.random import random_voice
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.runtime.stage import Stage
from s1_mini.types import SamplingParams, Voice

STAGES = ("semantic", "coarse")
STEPS = 60  # tokens of each sequence: a coarse window
LATE_WINDOW = 12  # a window of a coarse sequence with the maximum of earlier codes
TEXT = range(1000, 1040)


class Figures(NamedTuple):
    """The figures of one run."""

    first_s: float  # to all first tokens
    first_core_s: float
    tokens_per_s: float  # after that
    tokens_per_core_s: float


def begins(config: CascadeConfig, number: int, rows: int) -> list[Begin]:
    """Return sequences of maximal context: a voice, and for the coarse model a full window."""
    sizes, sampling, found = config.numbers, SamplingParams(temperature=0.0), []
    for row in range(rows):
        prompt = build_prompt(sizes, list(TEXT), Voice(random_voice(config, 420, row), ""))
        given: np.ndarray = prompt.items
        if number:
            given = np.random.default_rng(row).integers(0, sizes.semantic_size, sizes.max_coarse_text)
        past = np.random.default_rng(row).integers(0, sizes.codebook_size, (315, 2))
        conditions = Conditions(sampling, row, 0, STEPS, prompt.voice)
        found.append(Begin(row, LATE_WINDOW * number, given, past, 360 * number, STEPS, 1, 0, 0, conditions))
    return found


@torch.inference_mode()
def measure(config: CascadeConfig, stages: tuple[Stage, ...], number: int, rows: int) -> Figures:
    """Generate `rows` sequences at one stage."""
    stage, begun, first = stages[number], clocks(stages[number]), np.zeros(2)
    made, running = dict.fromkeys(range(rows), 0), set(range(rows))
    stage.begin(begins(config, number, rows))
    length = config.numbers.max_coarse_text + config.numbers.max_coarse_history if number else config.numbers.max_text
    for slot in range(rows):
        stage.prefill([Prefill(slot, 0, length)])
    while running:
        slots = sorted(running)
        result = stage.step(slots, 1)()
        for row, slot in enumerate(slots):
            made[slot] += slot not in result.late
            if result.stops[row] or made[slot] == STEPS:
                running.remove(slot)
        if not first.any() and all(made.values()):
            first = clocks(stage) - begun
    rates = (sum(made.values()) - rows) / (clocks(stage) - begun - first)
    return Figures(*first.tolist(), *rates.tolist())


def clocks(stage: Stage) -> np.ndarray:
    """Return wall time and the CPU time of a stage [2], including its worker process."""
    seconds = time.process_time()
    if isinstance(stage, WorkedStage):
        seconds += sum(psutil.Process(stage.worker.pid).cpu_times()[:2])
    return np.array([time.perf_counter(), seconds])


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--size", default="small", help="size of the random model: tiny, small, large [small]")
    parser.add_argument("--vllm-python", type=Path, required=True, help="Python of the environment with vLLM")
    parser.add_argument("--rows", type=numbers, default=(1, 8), help="numbers of concurrent sequences [1,8]")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs of each; the best counts [3]")
    options = parser.parse_args()
    placement = Placement(torch.device("cpu"), torch.float32, torch.float32)
    figures: dict[str, list[Figures]] = {}
    with random_checkpoint(options.size) as directory:
        chains: dict[str, StageChain] = {}
        for name, chosen in (("ours", ()), ("vLLM", STAGES)):
            settings = CascadeSettings(vllm_stages=chosen, vllm_python=options.vllm_python)
            loaded, begun = LoadedCascade(directory, placement, settings), time.perf_counter()
            chains[name] = loaded.chain(max(options.rows), loaded.max_positions)
            print(f"{name}: {time.perf_counter() - begun:.0f} s to start", flush=True)
        runs = itertools.product(enumerate(STAGES), options.rows, range(options.repeats), chains.items())
        try:
            for (number, stage), rows, _, (name, chain) in runs:
                found = measure(loaded.config, chain.stages, number, rows)
                figures.setdefault(f"{stage}, {rows}: {name}", []).append(found)
                print(f"{stage}, {rows}: {name}", *(f"{each:.3g}" for each in found), file=sys.stderr)
        finally:
            for each in chains["vLLM"].stages:
                each.close()
    best = {name: _best(found) for name, found in figures.items()}
    heads = ["stage, sequences", "first tokens s", "in CPU s", "tokens per second", "per CPU second"]
    result = {"size": options.size, "load": load_average(), "figures": best, "all": figures}
    report(heads, [[name, *found] for name, found in best.items()], result)


def _best(found: list[Figures]) -> Figures:
    first, first_core, rate, rate_core = zip(*found, strict=True)
    return Figures(min(first), min(first_core), max(rate), max(rate_core))


if __name__ == "__main__":
    sys.exit(run(main))
