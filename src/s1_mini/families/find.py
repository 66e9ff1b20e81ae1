"""Find the checkpoint that a setting names: a directory, a name on the hub, or the built-in one. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Self

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError, CheckpointNotFoundError
from s1_mini.families.base import Description, Family
from s1_mini.families.registry import FAMILIES, family_of, get_family
from s1_mini.weights.directory import DEFAULT_MODEL, read_json
from s1_mini.weights.hub import HubName, fetch, hub_name

WEIGHTS = {".safetensors", ".pth", ".pt", ".bin", ".npz", ".npy"}

_NO_CHECKPOINT = "No model to run: no checkpoint was named, and this installation lacks the built-in one."
_REMEDY = """Set one with --checkpoint, S1_MINI_CHECKPOINT_PATH or EngineConfig(checkpoint_path=...).
S1-mini itself: fishaudio/openaudio-s1-mini on the Hugging Face hub (gated, CC-BY-NC-SA-4.0, non-commercial)."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory, whose small files are read at first use."""

    directory: Path

    @cached_property
    def family(self) -> Family:
        """The family that its `config.json` names. Raises `CheckpointError`."""
        return family_of(self.directory)

    @cached_property
    def description(self) -> Description:
        """The checkpoint's properties, read from small files. Raises `CheckpointError`."""
        return self.family.describe(self.directory)

    def check_files(self) -> Self:
        """Check that all files of the checkpoint exist. Raises `CheckpointError`, which names all missing files."""
        try:
            family = self.family
        except CheckpointFileError:
            if (self.directory / "config.json").exists():  # it cannot be read, so the family is unknown
                raise
            family = get_family()
        _check_missing(str(self.directory), family, lambda name: (self.directory / name).exists())
        return self


def find_checkpoint(path: Path | None, *, with_weights: bool = True) -> Checkpoint:
    """Return the checkpoint that `path` names, or the built-in checkpoint if `path` is None.

    A checkpoint on the hub is downloaded to the hub's cache, without weights unless `with_weights`. Raises
    `CheckpointError`, or `ConfigurationError` if the hub's library is not installed.
    """
    if path is None:
        if not (DEFAULT_MODEL / "config.json").is_file():
            raise CheckpointNotFoundError(f"{_NO_CHECKPOINT}\n{_REMEDY}")
        return Checkpoint(DEFAULT_MODEL)
    if path.is_dir():
        return Checkpoint(path)
    name = hub_name(path)
    if path.exists() or name is None:
        kind = "a file, not a directory" if path.exists() else "not a directory"
        if len(path.parts) == 1 and not path.exists():
            kind += "; a name on the Hugging Face hub is OWNER/NAME"
        raise CheckpointNotFoundError(f"checkpoint {path} is {kind}.\n{_REMEDY}")
    return Checkpoint(fetch(name, partial(_pick, name, with_weights)))


def _pick(name: HubName, with_weights: bool, directory: Path, files: Collection[str]) -> list[str]:
    """Return the files of a repository that its family needs."""
    families = f"not a checkpoint of any family of this engine ({', '.join(FAMILIES)})"
    if "config.json" not in files:
        raise CheckpointFileError(f"checkpoint {name} has no config.json, so it is {families}")
    try:
        family = family_of(directory)
    except CheckpointMismatchError as error:
        raise CheckpointMismatchError(f"checkpoint {name} is {families}; {error}") from None
    family.check_config(read_json(directory / "config.json"))
    _check_missing(f"{name} on the hub", family, files.__contains__)
    return [file for file in family.pick_files(files) if with_weights or Path(file).suffix not in WEIGHTS]


def _check_missing(checkpoint: str, family: Family, has: Callable[[str], bool]) -> None:
    missing = [
        names[0] + (f" (or {names[-1]})" if len(names) > 1 else "")
        for names in family.needed_files
        if not any(has(name) for name in names)
    ]
    if missing:
        raise CheckpointFileError(f"{checkpoint} is not a complete checkpoint: it lacks {', '.join(missing)}")
