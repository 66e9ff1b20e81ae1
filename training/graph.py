"""A training step as one CUDA graph.

Launching thousands of small kernels one by one is what makes small models slow to train.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Step = Callable[[], None]


def use_capture_stream(device: torch.device) -> None:
    """Leave the default stream, from which nothing can be captured, before any work is done."""
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())


def capture(step: Step, device: torch.device, *, warm_up: int = 3) -> Step:
    """Run `step` a few times, then give a function that replays it; on a CPU give `step` itself.

    `step` may not look at values, and its optimisers must be capturable.
    """
    if device.type != "cuda":
        return step
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Only this thread is watched: NCCL's own may ask for its events meanwhile.
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        step()
    return graph.replay
