"""Download checkpoints from the Hugging Face hub, and find the origin of weights.

A checkpoint's name on the hub is `owner/name` or `owner/name@revision`. Only the required files, the model card and the
licence are downloaded, to the hub's own cache. Python files are never downloaded, and nothing is executed. The
environment variables of the hub apply: HF_TOKEN, HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT. The hub's library is imported at
first use.
"""

from __future__ import annotations

import errno
import glob
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any, NamedTuple

from s1_mini.exceptions import CheckpointFileError, CheckpointNotFoundError
from s1_mini.extras import require
from s1_mini.version import __version__
from s1_mini.weights.directory import read_whole

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

logger = logging.getLogger(__name__)

Pick = Callable[[Path, Collection[str]], Collection[str]]

CARD = "README.md"  # the model card, whose metadata names the licence
FIRST = ("config.json", CARD, "LICENSE", "LICENSE.md", "LICENSE.txt")

ORIGIN_FILE = "origin.json"  # file of a converted checkpoint
ORIGIN_KEY = "origin"  # key in that file and in an artifact's manifest
UNKNOWN = "unknown"

_MAX_BYTES = 16 * 2**20  # limit of a manifest or a model card
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
_LICENCE = re.compile(r"[\w.,+() -]{1,120}", re.ASCII)
_NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial", re.IGNORECASE)
_UNCLEAR = re.compile(rf"other\b|{UNKNOWN}$")
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(\w[\w./-]*))?", re.ASCII)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class HubName(NamedTuple):
    """A repository on the hub, and a branch, a tag or a commit. Without a revision, the newest commit is used."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")


def hub_name(path: Path) -> HubName | None:
    """Return the name on the hub that a path spells, or None if the path has another form."""
    found = _NAME.fullmatch(path.as_posix())
    return HubName(found[1], found[2]) if found else None


def fetch(name: HubName, pick: Pick) -> Path:
    """Download the required files that are not cached yet, and return the directory with the files of the commit.

    `pick` receives a directory with those files of `FIRST` that exist, and the names of all files of the repository; it
    returns the names of the required files. Raises `CheckpointError`, `ConfigurationError`, and the errors of `pick`.
    """
    require("hub", f"checkpoint {name}, which is not a local directory but a name on the Hugging Face hub,")

    from huggingface_hub import HfApi, get_cached_repo_tree, snapshot_download

    with _named_errors(name):
        api = HfApi(library_name="s1-mini", library_version=__version__)
        commit = api.resolve_revision(name.repository, revision=name.revision)  # uses the cache if offline
        download = partial(snapshot_download, name.repository, revision=commit, ignore_patterns=["*.py"])
        directory = Path(download(allow_patterns=list(FIRST)))
        sizes = {file.path: file.size for file in get_cached_repo_tree(name.repository, revision=commit)}
        picked = [file for file in pick(directory, sizes) if file in sizes]
        missing = sum(sizes[file] for file in picked if not (directory / file).exists())
        free = disk_usage(directory).free
        if missing > free:
            needed = f"the download needs {missing / 1e9:,.2f} GB, but only {free / 1e9:,.2f} GB are free"
            raise OSError(errno.ENOSPC, needed)
        if picked:
            download(allow_patterns=[glob.escape(file) for file in picked])
    logger.info("checkpoint %s: commit %s, in %s", name, commit.resolved, directory)
    return directory


@contextmanager
def _named_errors(name: HubName) -> Iterator[None]:
    """Convert errors of the hub's library to a `CheckpointError` with the cause and the remedy."""
    import httpx2
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.HfHubHTTPError as error:
        reason = _reason(error, f"{constants.ENDPOINT}/{name.repository}")
        raise CheckpointNotFoundError(f"checkpoint {name}{reason}") from None
    except (errors.RevisionResolutionError, errors.LocalEntryNotFoundError, ConnectionError, httpx2.TransportError):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached"
        raise CheckpointNotFoundError(
            f"checkpoint {name} is not a local directory, is incomplete in the hub's cache "
            f"({constants.HF_HUB_CACHE}), and {why}: go online once to download it, or use a local directory"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _DISK_FULL:
            raise CheckpointFileError(
                f"checkpoint {name}: the disk of {constants.HF_HUB_CACHE} is full ({reason}); free some space, or set "
                "HF_HOME to a folder on another disk"
            ) from None
        raise CheckpointFileError(f"checkpoint {name} cannot be stored in {constants.HF_HUB_CACHE}: {reason}") from None
    except ValueError as error:  # a name or a response that the library rejects
        raise CheckpointNotFoundError(f"checkpoint {name}: {str(error).partition(chr(10))[0]}") from None
    except RuntimeError as error:  # raised by the transfer (hf_xet)
        raise CheckpointFileError(f"checkpoint {name} could not be downloaded ({error}); try again") from None


def _reason(error: HfHubHTTPError, page: str) -> str:
    from huggingface_hub import errors

    status, reason = error.response.status_code, error.response.headers.get("X-Error-Message", "")
    if isinstance(error, errors.GatedRepoError):
        return f" is gated: accept its licence at {page} and set HF_TOKEN to a token of that account"
    if isinstance(error, errors.RevisionNotFoundError):
        return f": {page} has no such revision; specify a branch, a tag or a full commit hash after @"
    if "Invalid credentials" in reason:
        return ": the hub rejected HF_TOKEN; set a valid token, or unset it"
    if status == 401 or isinstance(
        error, errors.RepositoryNotFoundError
    ):  # private and missing repositories are indistinguishable
        return (
            f" is neither a local directory nor a readable repository at {page}: correct the name, or set HF_TOKEN if "
            "it is private"
        )
    return f": {page} returned HTTP {status}; try again later"


@dataclass(frozen=True)
class Origin:
    """The commit on the hub that weights come from. Raises `ValueError` for invalid values."""

    repository: str
    revision: str  # hash of the commit
    licence: str = UNKNOWN  # as the model card names it

    def __post_init__(self) -> None:
        forms = {"repository": _REPOSITORY, "revision": _COMMIT, "licence": _LICENCE}
        for name, form in forms.items():
            value = getattr(self, name)
            if not isinstance(value, str) or not form.fullmatch(value):
                raise ValueError(f"{name}={str(value)[:80]!r} is not a valid {name}")

    def __str__(self) -> str:
        return f"{self.repository} at commit {self.revision}, licence: {self.licence}"

    @property
    def caution(self) -> str | None:
        """A warning if the licence forbids commercial use or is unclear, otherwise None."""
        if _NON_COMMERCIAL.search(self.licence):
            return f"the licence of {self.repository}, {self.licence}, does not allow commercial use"
        if _UNCLEAR.match(self.licence):
            return f"the licence of {self.repository} is {self.licence!r}: check its page for the terms of use"
        return None

    def data(self) -> dict[str, str]:
        return asdict(self)


def origin_of(directory: Path) -> Origin | None:
    """Return the origin of a directory in the hub's cache, or written by `convert` or `package`; None if unknown.

    Raises `CheckpointFileError` if the stored origin is invalid.
    """
    commit = directory.absolute()
    if commit.parent.name == "snapshots" and commit.parents[1].name.startswith("models--"):
        repository = commit.parents[1].name.removeprefix("models--").replace("--", "/", 1)
        if _COMMIT.fullmatch(commit.name) and _REPOSITORY.fullmatch(repository):
            return Origin(repository, commit.name, _licence(directory / CARD))
    for name in (ORIGIN_FILE, "manifest.json"):
        if (directory / name).is_file():
            try:
                return read_origin(json.loads(read_whole(directory / name, _MAX_BYTES)))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise CheckpointFileError(f"{directory / name}: {ORIGIN_KEY} cannot be read ({error})") from None
    return None


def read_origin(value: dict[str, Any]) -> Origin | None:
    """Return the origin in a JSON object, or None if there is none. Raises `ValueError` or `TypeError`."""
    return Origin(**value[ORIGIN_KEY]) if value.get(ORIGIN_KEY) is not None else None


def _licence(card: Path) -> str:
    try:
        from huggingface_hub import ModelCard

        data = ModelCard(read_whole(card, _MAX_BYTES).decode(), ignore_metadata_errors=True).data
    except Exception:  # a missing card, or any error of the YAML parser
        return UNKNOWN
    value = data.get("license")
    licence = ", ".join(map(str, value)) if isinstance(value, list) else str(value or UNKNOWN)
    detail = data.get("license_name")
    detailed = f"{licence} ({detail})" if detail and licence == "other" else licence
    return next((text for text in (detailed, licence) if _LICENCE.fullmatch(text)), UNKNOWN)
