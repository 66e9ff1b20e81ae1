"""The manifest of an artifact: the SHA-256 and size of every file, and the versions that wrote it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from s1_mini.exceptions import PackageError
from s1_mini.weights.origin import KEY as ORIGIN
from s1_mini.weights.origin import Origin, read_origin

NAME = "manifest.json"
FORMAT = 1
MAX_BYTES = 16 * 2**20
MAX_FILES = 10_000
_MAX_NAME = 255  # bytes of one part of a path; file systems take no more
_MAX_PATH = 1024  # bytes; a key of S3 takes no more

_SHA256 = re.compile("[0-9a-f]{64}")
_NO_LETTERS = re.compile("[\x00-\x1f\ud800-\udfff]")  # controls, and invalid UTF-8
_FOREIGN = re.compile(r'[<>:"|?*]')  # a colon opens another stream of a file there
_DEVICE = re.compile(r"con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]", re.IGNORECASE)


class Content(NamedTuple):
    """One file's content: its SHA-256 in hexadecimal and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """All other files of an artifact by path, the versions that wrote them, and the origin of the weights, if known."""

    engine: str
    torch: str
    files: Mapping[str, Content]
    origin: Origin | None = None

    @property
    def content_sha256(self) -> str:
        """One hash of the whole content, independent of the form of the artifact."""
        lines = (f"{one.sha256} {one.size} {name}\n" for name, one in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return it as JSON, the same for the same content."""
        files = {name: {"sha256": one.sha256, "bytes": one.size} for name, one in sorted(self.files.items())}
        value = {
            "format": FORMAT,
            "engine": self.engine,
            "torch": self.torch,
            **({} if self.origin is None else {ORIGIN: self.origin.data()}),
            "content_sha256": self.content_sha256,
            "files": files,
        }
        return (json.dumps(value, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Parse a manifest. Raises `PackageError` if it is none, of another format, or contradicts itself."""
        try:
            value = json.loads(text)
            manifest = cls(str(value["engine"]), str(value["torch"]), _read_files(value["files"]), read_origin(value))
            form, content = value["format"], value["content_sha256"]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise PackageError(f"{NAME} is not a manifest of s1-mini package") from None
        if form != FORMAT:
            raise PackageError(f"{NAME} has format {repr(form)[:20]}; this version reads {FORMAT}. Package it again")
        check_names(manifest.files)
        if content != manifest.content_sha256:
            raise PackageError(f"{NAME} contradicts itself: content_sha256 is not that of its files")
        return manifest


def _read_files(value: Mapping[str, Any]) -> dict[str, Content]:
    files = {name: Content(one["sha256"], int(one["bytes"])) for name, one in value.items()}
    if not all(isinstance(one.sha256, str) and _SHA256.fullmatch(one.sha256) for one in files.values()):
        raise ValueError("a hash is none")
    return files


def check_names(names: Mapping[str, Any] | list[str]) -> None:
    """Raise `PackageError` for a path that is unsafe, there twice, or both a file and a folder, and for too many."""
    if len(names) > MAX_FILES:
        raise PackageError(f"there are more than {MAX_FILES:,} files")
    seen: dict[str, str] = {}
    for name in names:
        check_name(name)
        folded = name.casefold()  # as file systems of Windows and macOS see it
        if folded in seen:
            other = "is there twice" if seen[folded] == name else f"and {seen[folded]!r} differ only in case"
            raise PackageError(f"{name!r} {other}")
        seen[folded] = name
    for folded, name in seen.items():
        for end in (at for at, letter in enumerate(folded) if letter == "/"):
            if folded[:end] in seen:
                raise PackageError(f"{seen[folded[:end]]!r} is a file, and the folder of {name!r}")


def check_name(name: str) -> None:
    """Raise `PackageError` for a path that leads out of its folder, or that is invalid on some system."""
    if len(name.encode("utf-8", "replace")) > _MAX_PATH:
        raise PackageError(f"{name[:80]!r}… is longer than {_MAX_PATH:,} bytes")
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        raise PackageError(f"{name!r} is an absolute path")
    parts = name.split("/")
    if {"", ".", ".."} & {*parts}:
        raise PackageError(f"{name!r} {'leads out of its folder' if '..' in parts else 'is not a plain path'}")
    if "\\" in name or _NO_LETTERS.search(name):
        raise PackageError(f"{name!r} has letters that no path here may have")
    for part in parts:
        if _FOREIGN.search(part) or part.endswith((".", " ")) or _DEVICE.fullmatch(part.partition(".")[0].rstrip(" ")):
            raise PackageError(f"{name!r} cannot be a path on Windows; give {part!r} another name")
        if len(part.encode()) > _MAX_NAME:
            raise PackageError(f"{name[:80]!r}… is longer than {_MAX_NAME} bytes")
