"""The number of replicas, and the device of each: one GPU, or a share of the CPU cores."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.process import num_cores
from s1_mini.weights.directory import WORKING_SHARE

logger = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"
PROCESS_BYTES = 500e6  # memory of a process that runs torch on a CPU

Wanted = int | Literal["auto"]


@dataclass(frozen=True)
class LocalMachine:
    """GPUs, cores and free memory of this machine."""

    num_gpus: int
    num_cores: int
    free_bytes: float
    is_windows: bool = False

    @classmethod
    def here(cls, requested: Wanted, *, counts_gpus: bool) -> LocalMachine:
        """Measure this machine; GPUs are counted only if needed."""
        return cls(_count_gpus(requested) if counts_gpus else 0, num_cores(), _free_bytes(), os.name == "nt")


def count_replicas(requested: Wanted, config: EngineConfig, machine: LocalMachine, checkpoint_bytes: int) -> int:
    """Return the number of replicas. Raises `ConfigurationError` if the machine or `config` does not allow them."""
    on_gpu = config.device in ("auto", "cuda") and machine.num_gpus > 0
    if requested == "auto":
        return machine.num_gpus if on_gpu and not machine.is_windows and not config.placement else 1
    if requested == 1:
        return 1
    given = f"replicas={requested}"
    if machine.is_windows:
        raise ConfigurationError(f"{given}: several replicas require Linux or macOS; start one server per port instead")
    if config.device not in ("auto", "cuda", "cpu"):
        raise ConfigurationError(f"{given}: device={config.device} is a single device; use auto, cuda or cpu")
    if config.placement:
        raise ConfigurationError(
            f"{given}: S1_MINI_PLACEMENT needs several devices, but each replica sees only one; unset S1_MINI_PLACEMENT"
        )
    if on_gpu:
        if requested > machine.num_gpus:
            there = f"{machine.num_gpus} GPU{'s' if machine.num_gpus > 1 else ''}"
            raise ConfigurationError(
                f"{given}: each replica needs its own GPU, but this machine has {there}; "
                "replicas=auto starts one replica for each GPU"
            )
        return requested
    each = PROCESS_BYTES + WORKING_SHARE * checkpoint_bytes + (config.kv_cache_gb or 0) * 1e9
    if requested * each > machine.free_bytes:
        raise ConfigurationError(
            f"{given}: each replica needs about {each / 1e9:.1f} GB of memory, but only "
            f"{machine.free_bytes / 1e9:.1f} GB are free; replicas that fit: {int(machine.free_bytes // each)}"
        )
    if requested > machine.num_cores:
        logger.warning("%s: only %d cores are available; more replicas than cores are slower", given, machine.num_cores)
    return requested


def assign_device(index: int, count: int, machine: LocalMachine, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that give replica `index` of `count` its GPU or cores."""
    if machine.num_gpus:
        visible = [name.strip() for name in given.get(VISIBLE, "").split(",") if name.strip()]
        return {VISIBLE: visible[index] if visible else str(index)}
    if given.get(THREADS):
        return {}
    return {THREADS: str(max(1, machine.num_cores // count))}


def sees_gpu() -> bool:
    """Whether NVIDIA's driver shows this process a GPU. Does not import torch."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):  # there is no driver
        return False


def _count_gpus(requested: Wanted) -> int:
    """Count GPUs with torch, in a child process, because the supervisor itself does not need torch's 200 MB.

    The process takes seconds, so it is skipped if device files show no GPU, or one GPU and `requested` is `auto`.
    """
    if sys.platform == "linux" and not Path("/dev/dxg").exists():  # WSL has no file for each GPU
        nodes = sum(1 for node in Path("/dev").glob("nvidia*") if node.name.removeprefix("nvidia").isdigit())
        if nodes == 0 or (nodes == 1 and requested == "auto"):
            return nodes
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    output = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
    return int(output.stdout) if output.returncode == 0 else 0


def _free_bytes() -> float:
    """Return the free memory within the container's limit; infinity if the system does not report it."""
    free = float("inf")
    try:
        output = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return free
    if found := re.search(r"^MemAvailable:\s+(\d+) kB", output, re.MULTILINE):
        free = int(found[1]) * 1024.0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return free
    return free if limit == "max" else min(free, float(limit) - float(used))
