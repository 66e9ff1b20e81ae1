"""Shared by the recipe's commands: options, the device, and shards that appear later."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import torch


def parser(description: str | None, verbs: Collection[str] = (), **kinds: Any) -> argparse.ArgumentParser:
    """Return a parser with a positional `verb`, if there are any, and an option for each of `kinds`.

    A kind is a type (the option is required), an optional type such as `Path | None`, a tuple of choices (the first is
    the default), False (a switch), or the default value.
    """
    command = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if verbs:
        command.add_argument("verb", choices=verbs)
    for name, kind in kinds.items():
        option: dict[str, Any] = {"type": type(kind), "default": kind}
        if isinstance(kind, type):
            option = {"type": kind, "required": True}
        elif isinstance(kind, UnionType):
            option = {"type": kind.__args__[0]}
        elif isinstance(kind, tuple):
            option = {"choices": tuple(dict.fromkeys(kind)), "default": kind[0]}
        elif kind is False:
            option = {"action": "store_true"}
        shown = "default: %(default)s" if option.get("default") is not None else None
        command.add_argument(f"--{name.replace('_', '-')}", help=shown, **option)
    return command


def fast_device(seed: int = 0) -> torch.device:
    """Return the best available device; seed random numbers, and allow TF32 products."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(seed)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def write_shard(path: Path, **arrays: Any) -> None:
    """Write arrays atomically, so that no reader sees a partial shard."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
    temporary.replace(path)


class NewShards:
    """Reads each shard of a directory once, if `accepts` accepts its name; more may appear at any time."""

    def __init__(self, directory: Path, accepts: Callable[[str], bool]) -> None:
        self.directory, self._accepts = directory, accepts
        self._read: set[str] = set()

    def read(self, limit: int = 64) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield shards that have not been read, at most `limit`."""
        names = {path.name for path in self.directory.glob("shard_*.npz")} - self._read
        for name in sorted(filter(self._accepts, names))[:limit]:
            self._read.add(name)
            with np.load(self.directory / name) as shard:
                yield shard


def wait_until(is_ready: Callable[[], bool], max_wait_s: float, missing: str) -> None:
    """Wait until `is_ready`; raise `SystemExit` after `max_wait_s`, with a message that begins with `missing`."""
    end = time.monotonic() + max_wait_s
    while not is_ready():
        if time.monotonic() > end:
            raise SystemExit(f"{missing} within {max_wait_s:.0f} s. Is the command that writes them running?")
        time.sleep(0.2)
