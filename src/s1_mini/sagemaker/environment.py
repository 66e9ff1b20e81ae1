"""Translates SageMaker's container variables to our settings; the container's `serve` runs this module.

Our own variables take precedence. Imports neither torch nor the engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from s1_mini.exceptions import CheckpointNotFoundError, ConfigurationError, S1MiniError

CHECKPOINT = "S1_MINI_CHECKPOINT_PATH"
BASE = "SAGEMAKER_BASE_DIR"
# Variables of AWS's containers for vLLM: a checkpoint before and after /opt/ml/model, and flags of vLLM.
VLLM_MODEL, HUB_MODEL, VLLM_FLAGS = "SM_VLLM_MODEL", "HF_MODEL_ID", "SM_VLLM_"


class EnvironmentVariable(NamedTuple):
    """A variable of the platform, and our variable that it sets."""

    theirs: str
    ours: str
    bytes: int | None = None  # bytes per unit of the platform's variable


TABLE = (
    EnvironmentVariable("SAGEMAKER_BIND_TO_PORT", "S1_MINI_SERVER_PORT"),
    EnvironmentVariable("SAGEMAKER_MAX_PAYLOAD_IN_MB", "S1_MINI_SERVER_MAX_BODY_BYTES", 2**20),
    EnvironmentVariable("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "S1_MINI_SERVER_REQUEST_TIMEOUT_S"),
)

# The container's defaults.
DEFAULTS = {
    "S1_MINI_SERVER_HOST": "0.0.0.0",  # noqa: S104 - SageMaker connects from outside
    "S1_MINI_SERVER_REPLICAS": "auto",  # the endpoint owns all GPUs of its machine
    "S1_MINI_SERVER_REQUEST_TIMEOUT_S": "55",  # SageMaker gives up after 60 s
}
KEYS = ("S1_MINI_SERVER_API_KEY", "S1_MINI_SERVER_API_KEYS")
WITHOUT_KEYS = {"S1_MINI_SERVER_FAIRNESS": "request"}  # SageMaker has no key, and sends all requests from one address


def container_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for `s1-mini serve`. Raises `ConfigurationError` or `CheckpointNotFoundError`."""
    environment = dict(given)
    for theirs, ours, num_bytes in TABLE:
        if (value := given.get(theirs)) and not given.get(ours):
            try:
                environment[ours] = value if num_bytes is None else str(int(value) * num_bytes)
            except ValueError:
                raise ConfigurationError(f"{theirs} must be an integer, not {value!r}") from None
    defaults = DEFAULTS if any(given.get(name) for name in KEYS) else DEFAULTS | WITHOUT_KEYS
    environment |= {name: value for name, value in defaults.items() if not environment.get(name)}
    if not given.get(CHECKPOINT):
        mounted = Path(given.get(BASE) or "/opt/ml") / "model"
        if found := given.get(VLLM_MODEL) or find_model(mounted) or given.get(HUB_MODEL):
            environment[CHECKPOINT] = str(found)
    return environment


def find_model(directory: Path) -> Path | None:
    """Return the folder of the unpacked model; None if it is missing or has only code.

    Raises `CheckpointNotFoundError` if the folder has files but no checkpoint.
    """
    if (directory / "config.json").is_file():
        return directory
    if not directory.is_dir() or {path.name for path in directory.iterdir()} <= {"code", "lost+found"}:
        return None
    wrapped = next(directory.glob("*/config.json"), None)
    if wrapped is not None:
        raise CheckpointNotFoundError(
            f"{directory} has no config.json, but {wrapped.parent.name}/config.json exists: the archive wraps its "
            "files in a folder. Create the archive with s1-mini package, or with tar -C FOLDER ."
        )
    raise CheckpointNotFoundError(f"{directory} has no checkpoint: config.json is missing")


def ignored_flags(given: Mapping[str, str]) -> list[str]:
    """Return the names of vLLM's flags in the environment, which have no effect here."""
    return sorted(name for name in given if name.startswith(VLLM_FLAGS) and name != VLLM_MODEL)


def main() -> None:
    """Replace this process by `s1-mini serve`, so that the server itself receives SIGTERM."""
    try:
        environment = container_environment(os.environ)
    except S1MiniError as error:
        print(f"s1-mini: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        sys.exit(1)
    if ignored := ignored_flags(os.environ):
        print(  # noqa: T201
            f"s1-mini: {', '.join(ignored)}: flags of vLLM have no effect; see `s1-mini settings` for those of s1_mini",
            file=sys.stderr,
        )
    os.execve(sys.executable, [sys.executable, "-m", "s1_mini", "serve", *sys.argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    main()
