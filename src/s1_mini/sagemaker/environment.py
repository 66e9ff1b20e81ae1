"""What SageMaker tells a container by its environment, as our settings. `python -m` of this is what `serve` runs.

One table says what is taken over; a variable of ours that is set wins. Imports neither torch nor the engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from s1_mini.exceptions import CheckpointNotFoundError, ConfigurationError, S1MiniError

CHECKPOINT = "S1_MINI_CHECKPOINT_PATH"
BASE = "SAGEMAKER_BASE_DIR"


class Row(NamedTuple):
    """A variable of the platform, ours that it becomes, and how its value is changed on the way."""

    theirs: str
    ours: str
    change: Callable[[str], str]


def _as_given(value: str) -> str:
    return value


def _megabytes(value: str) -> str:
    return str(int(value) * 2**20)


TABLE = (
    Row("SAGEMAKER_BIND_TO_PORT", "S1_MINI_SERVER_PORT", _as_given),
    Row("SAGEMAKER_MAX_PAYLOAD_IN_MB", "S1_MINI_SERVER_MAX_BODY_BYTES", _megabytes),
    Row("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "S1_MINI_SERVER_REQUEST_TIMEOUT_S", _as_given),
)

# What holds in a container and nowhere else, unless it is set.
DEFAULTS = {
    "S1_MINI_SERVER_HOST": "0.0.0.0",  # noqa: S104 - it is reached from outside
    "S1_MINI_SERVER_REPLICAS": "auto",  # a machine's GPUs are all the endpoint's
    "S1_MINI_SERVER_FAIRNESS": "request",  # all requests come from the platform's address
    "S1_MINI_SERVER_REQUEST_TIMEOUT_S": "55",  # SageMaker gives up after 60 s
}


def container_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Give the environment to serve with. Raises `ConfigurationError` or `CheckpointNotFoundError`."""
    environment = dict(given)
    for row in TABLE:
        if given.get(row.theirs) and not given.get(row.ours):
            try:
                environment[row.ours] = row.change(given[row.theirs])
            except ValueError:
                raise ConfigurationError(f"{row.theirs}={given[row.theirs]!r} is not a whole number") from None
    for name, value in DEFAULTS.items():
        if not environment.get(name):
            environment[name] = value
    if not given.get(CHECKPOINT):
        found = find_model(Path(given.get(BASE) or "/opt/ml") / "model")
        if found is not None:
            environment[CHECKPOINT] = str(found)
    return environment


def find_model(directory: Path) -> Path | None:
    """Give the folder SageMaker unpacked the model into; None if it unpacked none, or only code.

    Raises `CheckpointNotFoundError` if there is something that cannot speak.
    """
    if (directory / "config.json").is_file():
        return directory
    if not directory.is_dir() or {path.name for path in directory.iterdir()} <= {"code", "lost+found"}:
        return None
    wrapped = next(directory.glob("*/config.json"), None)
    if wrapped is not None:
        raise CheckpointNotFoundError(
            f"{directory} has no config.json, but {wrapped.parent.name}/config.json: the archive has a folder around "
            "its files. Make it with s1-mini package, or with tar -C that folder"
        )
    raise CheckpointNotFoundError(f"{directory} holds no checkpoint: config.json is missing")


def main() -> None:
    """Become `s1-mini serve`, as the same process: it is the one that SIGTERM is sent to."""
    try:
        environment = container_environment(os.environ)
    except S1MiniError as error:
        print(f"s1-mini: {error}", file=sys.stderr)  # noqa: T201 - there is no log yet
        sys.exit(1)
    os.execve(sys.executable, [sys.executable, "-m", "s1_mini", "serve", *sys.argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    main()
