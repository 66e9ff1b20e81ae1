"""The training loop of the codec and of the dual-AR model: a captured step, replayed for a given time, on all GPUs.

`DIR/NAME.pt` is the state from which the next call resumes; `DIR/NAME.safetensors` holds the exponential mean of the
weights. If only the second file exists, training starts from its weights with a fresh optimiser.

A step is two CUDA graphs, because launching thousands of small kernels one by one makes small models slow to train.
Between them, gradients are averaged over the processes of a `Group`, each with its own GPU and data. Processes are
started by `python -m torch.distributed.run --nproc-per-node N -m MODULE …`, or with `RANK` and the other variables that
it sets, or as a single process. They all use the clock of the first process, so that all take the same steps at the
same learning rates.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn

from s1_mini.runtime.graphs import no_collections


@dataclass(frozen=True)
class Schedule:
    """Duration and learning rate of a training run."""

    total_s: float
    rate: float  # peak learning rate; it falls along half a cosine to a fiftieth
    warm_up: int  # steps
    mean_decay: float = 0.999  # of the exponential mean of the weights


class TimedTraining(ABC):
    """A network, its optimiser, the mean of its weights and its training time so far."""

    name: str  # of the files
    report_every: int  # steps
    optimiser: torch.optim.Optimizer  # used by `move`

    def __init__(
        self, work: Path, schedule: Schedule, device: torch.device, network: nn.Module, group: Group | None = None
    ) -> None:
        self.work, self.schedule, self.device, self.group = work, schedule, device, group or Group()
        self.names = [name for name, _ in network.named_parameters()]
        self.parameters: list[Tensor] = list(network.parameters())
        self.mean = [parameter.detach().clone() for parameter in self.parameters]
        self.rate = torch.tensor(0.0, device=device)
        self._packed = torch.empty(0)
        self.spent, self.steps = 0.0, 0

    def adam(self, groups: Sequence[Mapping[str, Any]], betas: tuple[float, float]) -> torch.optim.AdamW:
        """Return an optimiser whose rate a captured step reads from `self.rate`."""
        on_gpu = self.device.type == "cuda"
        return torch.optim.AdamW(
            [dict(group) for group in groups], lr=self.rate, betas=betas, fused=on_gpu, capturable=on_gpu
        )

    @abstractmethod
    def step(self) -> None:
        """Compute the gradients of one batch; captured, so it must not read values."""

    @property
    def done(self) -> float:
        """Progress from 0 to 1, which determines the learning rate; at 1 the training ends."""
        return min(1.0, self.spent / self.schedule.total_s)

    def wait(self) -> None:  # noqa: B027 - some have all they need
        """Wait for the data of the first step; called after capturing, which takes long and needs no data."""

    def between(self) -> None:  # noqa: B027 - most have nothing to do there
        """Do work that cannot be captured; called after every step."""

    @abstractmethod
    def print_progress(self, steps_per_s: float) -> None:
        """Print losses and speed; called every `report_every` steps and at the end."""

    @property
    def learners(self) -> list[Tensor]:
        """All weights that `step` takes gradients of."""
        return self.parameters

    def derive(self, loss: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()

    def move(self) -> None:
        """Update the weights and their mean; captured as well."""
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, self.parameters, 1 - self.schedule.mean_decay)

    def _step_and_pack(self) -> None:
        self.step()
        self._packed = self.group.pack(self.learners)

    def _unpack_and_move(self) -> None:
        self.group.unpack(self._packed, self.learners)
        self.move()

    def half(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)

    def train(self, seconds: float) -> None:
        """Resume with the other processes of the group, train for `seconds`, then leave the group."""
        self.resume()
        self.group.share([*self.learners, *self.mean])
        if self.group.leads:
            print(f"{self.name}: {sum(each.numel() for each in self.parameters)} parameters", flush=True)
        self.run(seconds)
        self.group.leave()

    def run(self, seconds: float) -> None:
        """Train for `seconds` or to the end of the schedule, then save."""
        if self.spent >= self.schedule.total_s:
            print(f"{self.name}: already finished", flush=True)
            return
        clock = self.group.clock()
        began, before, marked = clock(), self.spent, time.monotonic()
        seconds = min(seconds, self.schedule.total_s - before)
        self._set_rate()
        replay = capture(self._step_and_pack, lambda: self.group.add(self._packed), self._unpack_and_move, self.device)
        if self.group.leads:
            print(f"{self.name}: captured in {time.monotonic() - marked:.1f} s", flush=True)
        self.wait()
        marked, first = time.monotonic(), self.steps
        while (passed := clock() - began) < seconds and self.done < 1:
            self.spent = before + passed
            self._set_rate()
            replay()
            self.steps += 1
            self.between()
            if self.steps % self.report_every == 0 and self.group.leads:
                self.print_progress((self.steps - first) / (time.monotonic() - marked))
                marked, first = time.monotonic(), self.steps
        self.spent = before + passed
        if self.group.leads:
            self.print_progress((self.steps - first) / max(1e-9, time.monotonic() - marked))
            self.save()

    def _set_rate(self) -> None:
        rate = self.schedule.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.done)))
        self.rate.fill_(rate * min(1.0, (self.steps + 1) / self.schedule.warm_up))

    def state(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "optimiser": self.optimiser.state_dict(),
            "mean": self.mean,
            "spent": self.spent,
            "steps": self.steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.fill(state["parameters"], state["mean"])
        self.optimiser.load_state_dict(state["optimiser"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate  # keep the tensor that the schedule writes to
        self.spent, self.steps = state["spent"], state["steps"]

    def fill(self, parameters: Sequence[Tensor], mean: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for mine, saved in zip((*self.parameters, *self.mean), (*parameters, *mean), strict=True):
                mine.copy_(saved)

    def save(self) -> None:
        torch.save(self.state(), self.work / f"{self.name}.tmp")
        (self.work / f"{self.name}.tmp").replace(self.work / f"{self.name}.pt")

    @property
    def weights_path(self) -> Path:
        """The exported weights, from which a training run without a saved state starts."""
        return self.work / f"{self.name}.safetensors"

    def export(self, dtype: torch.dtype) -> None:
        """Write the mean weights under the names that a checkpoint has."""
        tensors = {n: t.detach().to("cpu", dtype).contiguous() for n, t in zip(self.names, self.mean, strict=True)}
        save_file(tensors, self.work / f"{self.name}.new")
        (self.work / f"{self.name}.new").replace(self.weights_path)

    def resume(self) -> bool:
        """Continue from the last `save` and return True; otherwise from exported weights or from the beginning."""
        path = self.work / f"{self.name}.pt"
        if path.exists():
            self.restore(torch.load(path, map_location=self.device, weights_only=True))
            return True
        if self.weights_path.exists():
            tensors = load_file(self.weights_path)
            values = [tensors[name] for name in self.names]
            self.fill(values, values)
        return False


Step = Callable[[], None]


def capture(first: Step, between: Step, last: Step, device: torch.device, *, warm_up: int = 3) -> Step:
    """Run a step's three parts a few times, then return a function that runs a step with two parts as CUDA graphs.

    `between` is not captured, so processes may exchange data there. The other parts must not read values, and their
    optimisers must be capturable. On a CPU, all three parts are called normally.
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
        # "thread_local", because NCCL's thread may query its events during the capture.
        captures = torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local")
        with no_collections(), captures:
            part()

    def replay() -> None:
        graphs[0].replay()
        between()
        graphs[1].replay()

    return replay


CLOCK_EVERY = 16  # readings of the group's clock that return the same time


class Group:
    """The processes of a training run, or a single process."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.size, self.rank = size, rank

    @classmethod
    def join(cls, device: torch.device) -> tuple[Group, torch.device]:
        """Join the processes that were started together, if any; return the group and this process's device."""
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
            torch.cuda.set_stream(torch.cuda.Stream())  # nothing can be captured from the default stream
        if "RANK" not in os.environ:
            return cls(), device
        # Imported before the group exists. Otherwise dynamo imports this module later, and the module's functions keep
        # the group, so that the group's threads outlive `leave`; one of the threads may abort the process at exit.
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
        """Concatenate all gradients for `add`; empty if there is only one process."""
        gradients = _gradients(parameters) if self.size > 1 else []
        return torch.cat([gradient.flatten() for gradient in gradients]) if gradients else torch.empty(0)

    def unpack(self, packed: Tensor, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by the mean over all processes; `packed` is the sum of their gradients."""
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
        if self.size > 1:
            distributed.destroy_process_group()


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
