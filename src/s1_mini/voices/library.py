"""Named voices: the file that holds one, and those that a checkpoint brings along in `voices/NAME.safetensors`.

A file holds the tensor `codes` [codebooks, frames] and, as metadata, `text` (what is said), `description`, for a voice
added later `codec` (who encoded it) and, in one of a checkpoint's, `default`. No name is ever guessed.

Only reading and writing codes loads torch: a list of voices needs none.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from s1_mini.exceptions import CheckpointFileError, VoiceError, VoiceNotFoundError
from s1_mini.files import files
from s1_mini.types import Voice

FOLDER = "voices"
SUFFIX = ".safetensors"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RESERVED = re.compile(r"con|prn|aux|nul|(com|lpt)\d")  # devices to Windows, whatever their suffix
MAX_FILE_BYTES = 2 * 2**20  # the longest reference makes 0.3 MB
MAX_LISTED = 20  # names in an error


@dataclass(frozen=True)
class VoiceSummary:
    """What a voice's file says of it, without its codes."""

    name: str
    text: str
    description: str
    is_default: bool
    frames: int
    codec: str  # fingerprint of the codec that encoded it; empty if unknown


@dataclass(frozen=True)
class NamedVoice:
    """One voice of a library."""

    name: str
    voice: Voice
    description: str = ""
    is_default: bool = False
    codec: str = ""

    @property
    def summary(self) -> VoiceSummary:
        """The same without its codes."""
        frames = int(self.voice.codes.shape[1])
        return VoiceSummary(self.name, self.voice.text, self.description, self.is_default, frames, self.codec)


class VoiceLibrary:
    """The voices of one checkpoint."""

    def __init__(self, voices: Mapping[str, NamedVoice]) -> None:
        self._voices = dict(voices)
        self._summaries = {name: named.summary for name, named in voices.items()}
        self._files: dict[str, Path] = {}

    @classmethod
    def listed(cls, checkpoint: Path) -> VoiceLibrary:
        """Do as `open`, but read a voice's codes, and load torch for it, when it is asked for."""
        library = cls({})
        library._files = {file.stem: file for file in _files(checkpoint)}
        library._summaries = {name: read_summary(file) for name, file in library._files.items()}
        return library

    @classmethod
    def open(cls, checkpoint: Path) -> VoiceLibrary:
        """Read all voices of a checkpoint directory; none is fine. Raises `CheckpointFileError` for a broken one."""
        return cls({file.stem: read_voice(file) for file in _files(checkpoint)})

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._summaries)

    @property
    def default(self) -> Voice | None:
        """The voice that speaks when none is asked for."""
        return next((self.describe(name).voice for name, told in self._summaries.items() if told.is_default), None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._summaries

    def describe(self, name: str) -> NamedVoice:
        """Give one voice. Raises `VoiceNotFoundError` for a name that is not there."""
        if name not in self:
            raise not_found(name, self.names)
        if name not in self._voices:
            self._voices[name] = read_voice(self._files[name])
        return self._voices[name]

    def summary(self, name: str) -> VoiceSummary:
        """Tell of one voice. Raises `VoiceNotFoundError` for a name that is not there."""
        if name not in self:
            raise not_found(name, self.names)
        return self._summaries[name]


def _files(checkpoint: Path) -> list[Path]:
    return sorted((checkpoint / FOLDER).glob(f"*{SUFFIX}"))


def not_found(name: str, known: Sequence[str]) -> VoiceNotFoundError:
    """Make the error for a name that is no voice's; it tells the first of those that are."""
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    listed = ", ".join(known[:MAX_LISTED]) or "none"
    return VoiceNotFoundError("voice", f"{str(name)[:80]!r} is not a voice here; there are: {listed}{more}")


def check_name(name: str) -> None:
    """Raise `VoiceError` for a name that cannot be a file's everywhere."""
    if not is_name(name):
        allowed = "use up to 64 of a-z, 0-9, - and _, beginning with a-z or 0-9, and no device of Windows such as con"
        raise VoiceError("voice", f"{str(name)[:80]!r} is no name; {allowed}")


def is_name(name: object) -> bool:
    """Tell whether this can be a voice's name."""
    return isinstance(name, str) and bool(NAME.fullmatch(name)) and not RESERVED.fullmatch(name)


def read_voice(path: Path) -> NamedVoice:
    """Read one voice file. Raises `CheckpointFileError` if it is none."""
    import torch

    try:
        _check_size(path)
        with safe_open(path, framework="pt") as file:
            codes, metadata = file.get_tensor("codes"), file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointFileError(f"{path} is no voice file: {error}") from None
    if (
        codes.dim() != 2
        or not codes.shape[1]
        or codes.dtype not in {torch.uint8, torch.int16, torch.int32, torch.int64}
    ):
        raise CheckpointFileError(f"{path} is no voice file: its codes are {codes.dtype} {list(codes.shape)}")
    told = _summary(path.stem, int(codes.shape[1]), metadata)
    voice = Voice(codes.to(torch.int64, copy=True), told.text)  # a copy: the file may vanish under a mapping
    return NamedVoice(path.stem, voice, told.description, told.is_default, told.codec)


def read_summary(path: Path) -> VoiceSummary:
    """Read what a voice file says of itself, not its codes. Raises `CheckpointFileError` if it is none."""
    try:
        _check_size(path)
        with safe_open(path, framework="numpy") as file:
            shape, metadata = file.get_slice("codes").get_shape(), file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointFileError(f"{path} is no voice file: {error}") from None
    if len(shape) != 2 or not shape[1]:
        raise CheckpointFileError(f"{path} is no voice file: its codes are {shape}")
    return _summary(path.stem, shape[1], metadata)


def write_voice(
    folder: Path,
    name: str,
    voice: Voice,
    *,
    description: str = "",
    is_default: bool = False,
    codec: str = "",
    replace: bool = True,
) -> Path:
    """Write one voice file into `folder`, whole or not at all.

    Raises `VoiceError` for a name that cannot be a file's everywhere and, unless it may `replace`, `FileExistsError`.
    """
    import torch
    from safetensors.torch import save

    check_name(name)
    path = folder / f"{name}{SUFFIX}"
    metadata = {"text": voice.text, "description": description, "default": "true" if is_default else "false"}
    if codec:
        metadata["codec"] = codec
    _publish(path, save({"codes": voice.codes.to(torch.int16).contiguous()}, metadata=metadata), replace=replace)
    return path


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"it has {size} bytes, and a voice at most {MAX_FILE_BYTES}")


def _summary(name: str, frames: int, metadata: Mapping[str, str]) -> VoiceSummary:
    text, description = metadata.get("text", ""), metadata.get("description", "")
    return VoiceSummary(name, text, description, metadata.get("default") == "true", frames, metadata.get("codec", ""))


def _publish(path: Path, content: bytes, *, replace: bool) -> None:
    """Write beside, then rename: whoever looks sees the old file, none, or the whole new one, even after a crash."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.chmod(0o644)
        if replace:
            files.replace(unfinished, path)
        else:
            files.rename_to_new(unfinished, path)
        _sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # which cannot open one
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
