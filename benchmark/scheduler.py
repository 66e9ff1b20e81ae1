"""The cost of scheduling: the engine's scheduler with stages that do nothing.

python -m benchmark.scheduler --rows 1,16,64,128

In a turn, the next step of each stage is planned, launched and reported; all requests stream. Each line is the median
over blocks of turns, which reduces the effect of other load on the machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmark.command import make_parser, numbers, report, run
from s1_mini.bench.profile import submit, unthreaded
from s1_mini.bench.report import describe_machine
from s1_mini.core.messages import Begin, StepResult
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.stage import Autoregressive, Chunks, Spec, StagePolicy
from s1_mini.runtime.stage import Pending, Stage

BLOCKS = 10
SAMPLE_RATE, SAMPLES, CODEBOOKS = 16_000, 640, 10  # 25 frames a second
FOREVER = 10**9  # steps
WARM_UP = 100  # turns, until all chunks have their largest size


def policies(rows: int) -> tuple[StagePolicy, ...]:
    """Return the policies of a language model and a codec."""
    frames = Spec("int64", (CODEBOOKS,), rate=SAMPLE_RATE / SAMPLES)
    prompt = Spec("int64", (CODEBOOKS + 1,))
    return (
        Autoregressive(name="language model", input=prompt, output=frames, slots=rows, held_back=1),
        Chunks(
            name="codec",
            input=frames,
            output=Spec("float32", rate=SAMPLE_RATE),
            slots=2 * rows,
            sizes=dict.fromkeys(("ttfa", "balanced", "throughput"), (1, 2, 4, 8, 12)),
            rows=(1, 2, 4, 8, 16, 32, 64),
            max_items=400,
            items_a_turn=32 + 2 * rows,
        ),
    )


class NullStage(Stage):
    """A stage whose steps always return the same zeros, `item` [items of a unit of size 1, *shape]."""

    device, is_overlapped = torch.device("cpu"), False

    def __init__(self, item: np.ndarray, *, is_over: bool) -> None:
        self._item, self._is_over = item, is_over  # `is_over`: each step ends its unit

    def begin(self, begins: Sequence[Begin]) -> None:
        """Do nothing."""

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Return `size` units of items."""
        rows, shape = len(slots), self._item.shape
        items = np.broadcast_to(self._item, (size, *shape)).reshape(-1, *shape[1:])
        result = StepResult([items] * rows, [len(items)] * rows, [self._is_over] * rows, [True] * rows)
        return lambda: result


def measure_scheduler(rows: int, turns: int = 500) -> float:
    """Return the milliseconds that one turn costs without the device's work, with `rows` streaming requests."""
    stages = (
        NullStage(np.zeros((1, CODEBOOKS), np.int64), is_over=False),
        NullStage(np.zeros(SAMPLES, np.float32), is_over=True),
    )
    core = unthreaded(policies(rows), stages, rows)
    prompt = PromptTokens(np.zeros((40, CODEBOOKS + 1), np.int64))
    queues = [submit(core, SAMPLE_RATE, prompt, max_steps=FOREVER, seed=row) for row in range(rows)]
    turn, running = core.workers[0].turn, core.scheduler.stages[0].running
    while len(running) < rows:
        turn()
    for _ in range(WARM_UP):
        turn()
    blocks = []
    for _ in range(BLOCKS):
        begun = time.perf_counter()
        for _ in range(turns // BLOCKS):
            turn()
        blocks.append(1000 * (time.perf_counter() - begun) / (turns // BLOCKS))
    for queue in queues:
        queue.close()
    turn()  # ends the cancelled requests
    return statistics.median(blocks)


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument(
        "--rows", type=numbers, default=(1, 16, 64, 128), help="numbers of concurrent requests, such as 1,16,64,128"
    )
    parser.add_argument("--turns", type=int, default=500, help="number of measured turns [500]")
    options = parser.parse_args()
    took = {rows: measure_scheduler(rows, options.turns) for rows in options.rows}
    facts = describe_machine("cpu") | {"turns": options.turns, "scheduler_ms": took}
    report(["rows", "ms per turn"], [[str(rows), ms] for rows, ms in took.items()], facts)


if __name__ == "__main__":
    sys.exit(run(main))
