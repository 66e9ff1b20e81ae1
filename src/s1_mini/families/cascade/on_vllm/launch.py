"""Start the vLLM workers, after a check of their Python environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from s1_mini.exceptions import ConfigurationError
from s1_mini.extras import require
from s1_mini.families.base import Placement
from s1_mini.families.cascade.config import CascadeConfig
from s1_mini.families.cascade.on_vllm.packing import check_range
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.remote.tokens import TokenWorker
from s1_mini.version import __version__

WORKER = ("-P", "-m", "s1_mini.families.cascade.on_vllm.worker")  # -P: what lies in the working directory is not meant
START_S = 600.0  # for vLLM to be ready; 14 to 28 s were measured on two cores
SILENT_S = 120.0  # without a token, though there is work
LOOK_S = 60.0  # for Python to start and report its packages
LOOK = """
from importlib.metadata import entry_points
from importlib.util import find_spec
print("vllm", find_spec("vllm") is not None)
if entry_points(group="vllm.general_plugins", name="s1_mini_cascade"):
    from s1_mini.version import __version__
    print("s1_mini", __version__)
"""


def check_vllm(config: CascadeConfig, placement: Placement, settings: CascadeSettings) -> None:
    """Raise `ConfigurationError` for what stages on vLLM cannot have; with the command, if something is to install."""
    for name, dtype in (("weights_dtype", placement.weights_dtype), ("kv_dtype", placement.kv_dtype)):
        if dtype is not None:
            told = str(dtype).removeprefix("torch.")
            raise ConfigurationError(f"{name}={told} is for our own stages, and vllm_stages names others; use full")
    if "semantic" in settings.vllm_stages:
        check_range(config)
    _check_environment(settings)


def _check_environment(settings: CascadeSettings) -> None:
    if settings.vllm_python is None:
        require("vllm", "vllm_stages without S1_MINI_VLLM_PYTHON (the Python of an environment for it, docs/vllm.md)")
    python = interpreter(settings)
    install = f'{python} -m pip install "s1-mini[vllm]"'
    try:
        looked = subprocess.run(  # noqa: S603 - the interpreter is the owner's to name
            [python, "-P", "-c", LOOK], capture_output=True, text=True, timeout=LOOK_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        raise ConfigurationError(f"vllm_python={python} does not run: {told.strip()[-200:]}") from None
    found = dict(line.split(maxsplit=1) for line in looked.stdout.splitlines() if " " in line)
    if found.get("vllm") != "True":
        raise ConfigurationError(f"vllm_stages: vLLM is not installed for {python}: {install} (docs/vllm.md)")
    if found.get("s1_mini") != __version__:
        has = f"has s1-mini {found['s1_mini']}" if "s1_mini" in found else "lacks s1-mini"
        raise ConfigurationError(f"vllm_python: {python} {has}, and this one is {__version__}: {install}")


def interpreter(settings: CascadeSettings) -> str:
    """Return the path of the Python that has vLLM."""
    return str(settings.vllm_python or sys.executable)


def start_worker(
    stage: str,
    directory: Path,
    placement: Placement,
    settings: CascadeSettings,
    *,
    slots: int,
    positions: int,
    min_eos_p: float,
) -> TokenWorker:
    """Begin to start the worker of a stage, for `slots` sequences of up to `positions` positions each."""
    device = placement.of(stage)
    environment = dict(os.environ)
    if device.type == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = _visible(device)
    opening = {
        "stage": stage,
        "checkpoint": str(directory.resolve()),
        "device": device.type,
        "dtype": str(placement.dtype).removeprefix("torch."),
        "slots": slots,
        "positions": positions,
        "min_eos_p": min_eos_p,
    }
    command = [interpreter(settings), *WORKER]
    return TokenWorker(stage, command, opening, environment=environment, start_s=START_S, silent_s=SILENT_S)


def _visible(device: torch.device) -> str:
    """Return the name of a GPU in `CUDA_VISIBLE_DEVICES`."""
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    index = device.index or 0
    return seen[index] if index < len(seen) else str(index)
