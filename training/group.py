"""Several processes that train one network, each on a GPU and on speech of its own.

Started by `python -m torch.distributed.run --nproc-per-node N -m MODULE …`, or with `RANK` and the rest that it tells
them, or alone, as one process. All take the same steps at the same rates: gradients are averaged between the two
captured parts of a step, and the time is the leader's.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, distributed

CLOCK_EVERY = 16  # readings; between them time stands still


class Group:
    """The processes; a single one needs no start."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.size, self.rank = size, rank

    @classmethod
    def join(cls, device: torch.device) -> tuple[Group, torch.device]:
        """Join the processes that were started together, if any; give this one's device, too."""
        if "RANK" not in os.environ:
            return cls(), device
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        # Its functions keep the group that there is when they are imported, as dynamo does; then the group's threads
        # outlive it, and at times one of them aborts the process at its end.
        importlib.import_module("torch.distributed.nn")
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        group = cls(distributed.get_world_size(), distributed.get_rank())
        torch.manual_seed(group.rank)
        return group, device

    @property
    def leads(self) -> bool:
        """Whether this process prints and saves."""
        return self.rank == 0

    def pack(self, parameters: Iterable[Tensor]) -> Tensor:
        """All gradients one after another, for `add`; of nothing if there is one process."""
        gradients = _gradients(parameters) if self.size > 1 else []
        return torch.cat([gradient.flatten() for gradient in gradients]) if gradients else torch.empty(0)

    def unpack(self, packed: Tensor, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by the mean over all processes, of whose gradients `packed` is the sum."""
        if self.size == 1:
            return
        gradients = _gradients(parameters)
        pieces = (packed / self.size).split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])

    def add(self, numbers: Tensor) -> None:
        """Replace numbers by their sum over all processes."""
        if self.size > 1:
            distributed.all_reduce(numbers)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by the leader's."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor.data, src=0)

    def clock(self) -> Callable[[], float]:
        """A clock in seconds that reads the same in every process, if all read it equally often."""
        if self.size == 1:
            return time.monotonic
        readings, last = 0, torch.zeros((), dtype=torch.float64)
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"

        def read() -> float:
            nonlocal readings, last
            if readings % CLOCK_EVERY == 0:
                last = torch.tensor(time.monotonic(), dtype=torch.float64, device=device)
                distributed.broadcast(last, src=0)
                last = last.cpu()
            readings += 1
            return float(last)

        return read

    def leave(self) -> None:
        """End what `join` began."""
        if self.size > 1:
            distributed.destroy_process_group()


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
