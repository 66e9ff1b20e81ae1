"""A training step as two CUDA graphs.

Launching thousands of small kernels one by one is what makes small models slow to train.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from s1_mini.runtime.graphs import no_collections

Step = Callable[[], None]


def use_capture_stream(device: torch.device) -> None:
    """Leave the default stream, from which nothing can be captured, before any work is done."""
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())


def capture(first: Step, between: Step, last: Step, device: torch.device, *, warm_up: int = 3) -> Step:
    """Run a step's three parts a few times, then give a function that replays the first and the last.

    What is `between` is called as it is: there processes may talk. The others may not look at values, and their
    optimisers must be capturable. On a CPU all three are called.
    """

    def whole() -> None:
        first()
        between()
        last()

    if device.type != "cuda":
        return whole
    for _ in range(warm_up):
        whole()
    torch.cuda.synchronize()
    graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    for graph, part in zip(graphs, (first, last), strict=True):
        # Only this thread is watched: NCCL's own may ask for its events meanwhile.
        captures = torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local")
        with no_collections(), captures:
            part()

    def replay() -> None:
        graphs[0].replay()
        between()
        graphs[1].replay()

    return replay
