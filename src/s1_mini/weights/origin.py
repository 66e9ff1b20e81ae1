"""Where the weights of a directory come from: repository, commit and licence, for what is made of them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from s1_mini.exceptions import CheckpointFileError
from s1_mini.weights.directory import read_whole
from s1_mini.weights.hub import CARD

FILE = "origin.json"  # of a converted checkpoint
KEY = "origin"  # in that file, and in an artifact's manifest
UNKNOWN = "unknown"

_MAX_BYTES = 16 * 2**20  # as much as a manifest may have
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
_LICENCE = re.compile(r"[\w.,+() -]{1,120}", re.ASCII)
_NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial", re.IGNORECASE)
_SAYS_NOTHING = re.compile(rf"other\b|{UNKNOWN}$")


@dataclass(frozen=True)
class Origin:
    """A commit of a repository on the hub. Raises `ValueError` for what cannot be one."""

    repository: str
    revision: str  # hash of the commit
    licence: str = UNKNOWN  # as its card names it

    def __post_init__(self) -> None:
        forms = {"repository": _REPOSITORY, "revision": _COMMIT, "licence": _LICENCE}
        for name, form in forms.items():
            value = getattr(self, name)
            if not isinstance(value, str) or not form.fullmatch(value):
                raise ValueError(f"{name}={str(value)[:80]!r} is none")

    def __str__(self) -> str:
        return f"{self.repository} at commit {self.revision}, licence: {self.licence}"

    @property
    def caution(self) -> str | None:
        """One sentence if its licence forbids commercial use, or does not say what it allows."""
        if _NON_COMMERCIAL.search(self.licence):
            return f"the licence of {self.repository}, {self.licence}, allows no commercial use"
        if _SAYS_NOTHING.match(self.licence):
            return f"the licence of {self.repository} is {self.licence!r}: read what its page allows before you use it"
        return None

    def data(self) -> dict[str, str]:
        return asdict(self)


def origin_of(directory: Path) -> Origin | None:
    """Return the origin of a directory of the hub's cache, `convert` or `package`; None if unknown.

    Raises `CheckpointFileError` if what it says cannot be read.
    """
    commit = directory.absolute()
    if commit.parent.name == "snapshots" and commit.parents[1].name.startswith("models--"):
        repository = commit.parents[1].name.removeprefix("models--").replace("--", "/", 1)
        if _COMMIT.fullmatch(commit.name) and _REPOSITORY.fullmatch(repository):
            return Origin(repository, commit.name, _licence(directory / CARD))
    for name in (FILE, "manifest.json"):
        if (directory / name).is_file():
            try:
                return read_origin(json.loads(read_whole(directory / name, _MAX_BYTES)))
            except (ValueError, TypeError, RecursionError) as error:
                raise CheckpointFileError(f"{directory / name}: {KEY} cannot be read ({error})") from None
    return None


def read_origin(value: dict[str, Any]) -> Origin | None:
    """Read what `origin_of` finds in JSON. Raises `ValueError` or `TypeError`."""
    return Origin(**value[KEY]) if value.get(KEY) is not None else None


def _licence(card: Path) -> str:
    try:
        from huggingface_hub import ModelCard

        data = ModelCard(read_whole(card, _MAX_BYTES).decode(), ignore_metadata_errors=True).data
    except Exception:  # a missing card, or any error of others' parsers for its YAML
        return UNKNOWN
    named = data.get("license")
    licence = ", ".join(map(str, named)) if isinstance(named, list) else str(named or UNKNOWN)
    detail = data.get("license_name")
    told = f"{licence} ({detail})" if detail and licence == "other" else licence
    return next((text for text in (told, licence) if _LICENCE.fullmatch(text)), UNKNOWN)
