"""Named voices: the format of a voice file, and the voices of a checkpoint in `voices/NAME.safetensors`.

A file holds the tensors that the family defines (`format`) and, as metadata, `text` (the transcript), `description`,
`codec` (the fingerprint of the encoder) for added voices, and `default`, which is true for at most one
of the checkpoint's voices and false for all others.

Only reading and writing tensors loads torch; listing voices does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from s1_mini.exceptions import CheckpointFileError, VoiceError, VoiceFileError, VoiceNotFoundError
from s1_mini.files import files
from s1_mini.types import Voice
from s1_mini.voices.format import VoiceBeside, VoiceFormat, for_file, shapes_of

FOLDER = "voices"
SUFFIX = ".safetensors"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RESERVED = re.compile(r"con|prn|aux|nul|(com|lpt)\d")  # device names on Windows, with any suffix
MAX_LISTED = 20  # names in an error

Content = TypeVar("Content")


@dataclass(frozen=True)
class VoiceSummary:
    """The metadata of a voice file, without its tensors."""

    name: str
    text: str
    description: str
    is_default: bool
    seconds: float  # duration of the recording
    encoder: str  # fingerprint of the encoder; empty if unknown


@dataclass(frozen=True)
class NamedVoice:
    """A voice with its name and metadata."""

    name: str
    voice: Voice
    description: str = ""
    is_default: bool = False
    encoder: str = ""

    def summary(self, form: VoiceFormat) -> VoiceSummary:
        seconds = form.seconds(shapes_of(self.voice.tensors))
        return VoiceSummary(self.name, self.voice.text, self.description, self.is_default, seconds, self.encoder)


class CheckpointVoices:
    """The voices of one checkpoint. A damaged voice causes errors only in requests that use it."""

    def __init__(
        self, checkpoint: Path, files: Mapping[str, Path], form: VoiceFormat, beside: Mapping[str, VoiceBeside]
    ) -> None:
        """List the voices in `files`, and those in the publisher's format whose names have no file."""
        self.folder = checkpoint / FOLDER
        self._checkpoint, self._files, self._form = checkpoint, files, form
        self._beside = {name: each for name, each in beside.items() if is_name(name) and name not in files}
        self._summaries: dict[str, VoiceSummary] = {}
        self._voices: dict[str, NamedVoice] = {}
        self.faults: dict[str, str] = {}  # why damaged voices cannot be used, among those read so far
        for name in self.names:
            try:
                self._summaries[name] = self._summarize(name)
            except CheckpointFileError as error:
                self._note(name, error)

    @classmethod
    def listed(cls, checkpoint: Path, form: VoiceFormat) -> CheckpointVoices:
        """Return the voices of a checkpoint; tensors (and torch) are loaded when a voice is used.

        Raises `CheckpointFileError` if the publisher's list of voices is broken.
        """
        files = {file.stem: file for file in sorted((checkpoint / FOLDER).glob(f"*{SUFFIX}"))}
        return cls(checkpoint, files, form, form.beside(checkpoint))

    @classmethod
    def open(cls, checkpoint: Path, form: VoiceFormat) -> CheckpointVoices:
        """Read all voices of a checkpoint directory, if any; `faults` has the damaged ones.

        Raises the errors of `listed`.
        """
        library = cls.listed(checkpoint, form)
        for name in library.names:
            with suppress(VoiceFileError):
                library.describe(name)
        return library

    @property
    def names(self) -> list[str]:
        return sorted({*self._files, *self._beside})

    @property
    def default_name(self) -> str | None:
        """The default voice's name, if its file is readable. Voice files take precedence over the publisher's files."""
        defaults = [name for name, summary in self._summaries.items() if summary.is_default]
        return min(defaults, key=lambda name: name in self._beside, default=None)

    @property
    def default(self) -> Voice | None:
        """The voice of requests that name none. Raises `VoiceFileError` if it is damaged or cannot be determined."""
        unknown = sorted(self._files.keys() - self._summaries.keys())  # damaged; one of them may be the default
        name = self.default_name
        if unknown and name not in self._files:
            name = unknown[0]
        if name is None:
            return None
        try:
            return self.describe(name).voice
        except VoiceFileError:
            fault = f"may be damaged: {self.faults[name]}" if name in unknown else self.faults[name]
            raise VoiceFileError(
                "voice", f"is not set, and the default voice {fault}; name another voice until it is repaired"
            ) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._files or name in self._beside)

    def describe(self, name: str) -> NamedVoice:
        """Return one voice. Raises `VoiceNotFoundError` for an unknown name, or `VoiceFileError`."""
        self._check(name)
        if name not in self._voices:
            try:
                self._voices[name] = self._read(name)
            except CheckpointFileError as error:
                self._note(name, error)
                self._check(name)
        return self._voices[name]

    def summary(self, name: str) -> VoiceSummary:
        self._check(name)
        return self._summaries[name]

    def _check(self, name: str) -> None:
        if name not in self:
            raise not_found(name, self.names)
        if name in self.faults:
            raise VoiceFileError("voice", self.faults[name])

    def _note(self, name: str, error: CheckpointFileError) -> None:
        reason = str(error).replace(f"{self._checkpoint}{os.sep}", "")  # clients must not see paths of the server
        self.faults[name] = (
            f"{name!r} cannot be used: {reason}; download this file of the checkpoint again, or delete it"
        )

    def _summarize(self, name: str) -> VoiceSummary:
        if name in self._files:
            return read_summary(self._files[name], self._form)
        beside = self._beside[name]
        return VoiceSummary(name, "", "", beside.is_default, self._form.seconds(beside.shapes()), "")

    def _read(self, name: str) -> NamedVoice:
        if name in self._files:
            return read_voice(self._files[name], self._form)
        return NamedVoice(name, Voice(self._beside[name].read(), ""), is_default=self._beside[name].is_default)


def not_found(name: str, known: Sequence[str]) -> VoiceNotFoundError:
    """Return the error for an unknown voice; it lists the first known ones."""
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    listed = ", ".join(known[:MAX_LISTED]) or "none"
    return VoiceNotFoundError("voice", f"unknown voice {str(name)[:80]!r}; available: {listed}{more}")


def check_name(name: str, field: str = "voice") -> None:
    """Raise `VoiceError` for `field` if a name is not a valid file name on every system."""
    if not is_name(name):
        allowed = (
            "use 1 to 64 of a-z, 0-9, - and _, starting with a-z or 0-9, but not a Windows device name such as con"
        )
        raise VoiceError(field, f"{str(name)[:80]!r} is not a valid name; {allowed}")


def is_name(name: object) -> bool:
    return isinstance(name, str) and bool(NAME.fullmatch(name)) and not RESERVED.fullmatch(name)


def read_voice(path: Path, form: VoiceFormat) -> NamedVoice:
    """Read one voice file. Raises `CheckpointFileError` if it is not valid."""
    tensors, metadata = _read(path, form.read)
    summary = _summary(path.stem, form.seconds(shapes_of(tensors)), metadata)
    return NamedVoice(path.stem, Voice(tensors, summary.text), summary.description, summary.is_default, summary.encoder)


def read_summary(path: Path, form: VoiceFormat) -> VoiceSummary:
    """Read the metadata of a voice file, not its tensors. Raises `CheckpointFileError` if it is not valid."""
    shapes, metadata = _read(path, form.read_shapes)
    return _summary(path.stem, form.seconds(shapes), metadata)


def _read(path: Path, read: Callable[[Path], Content]) -> Content:
    try:
        return read(path)
    except (SafetensorError, OSError, ValueError) as error:
        # The message of an OSError has the whole path, on Windows with doubled backslashes.
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise CheckpointFileError(f"{path} is not a valid voice file: {reason}") from None


def write_voice(
    folder: Path,
    name: str,
    voice: Voice,
    *,
    description: str = "",
    is_default: bool = False,
    encoder: str = "",
    replace: bool = True,
) -> Path:
    """Write one voice file into `folder` atomically.

    Raises `VoiceError` for a name that is not a valid file name on every system, and `OSError`, which is
    `FileExistsError` for an existing file unless `replace` is true.
    """
    from safetensors.torch import save

    check_name(name)
    path = folder / f"{name}{SUFFIX}"
    metadata = {"text": voice.text, "description": description, "default": "true" if is_default else "false"}
    if encoder:
        metadata["codec"] = encoder
    files.publish(path, save(for_file(voice.tensors), metadata=metadata), replace=replace)
    return path


def _summary(name: str, seconds: float, metadata: Mapping[str, str]) -> VoiceSummary:
    text, description = metadata.get("text", ""), metadata.get("description", "")
    return VoiceSummary(name, text, description, metadata.get("default") == "true", seconds, metadata.get("codec", ""))
