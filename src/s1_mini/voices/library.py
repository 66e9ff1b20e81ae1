"""Named voices of a checkpoint: `voices/NAME.safetensors` beside its weights, each encoded once and for all.

A file holds the tensor `codes` [codebooks, frames] and, as metadata, `text` (what is said), `description` and, in one
of them, `default`. Nothing is encoded here, and no name is ever guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from s1_mini.exceptions import CheckpointFileError, VoiceError
from s1_mini.types import Voice

FOLDER = "voices"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class NamedVoice:
    """One voice of a library."""

    name: str
    voice: Voice
    description: str
    is_default: bool


class VoiceLibrary:
    """The voices of one checkpoint."""

    def __init__(self, voices: Mapping[str, NamedVoice]) -> None:
        self._voices = dict(voices)

    @classmethod
    def open(cls, checkpoint: Path) -> VoiceLibrary:
        """Read all voices of a checkpoint directory; none is fine. Raises `CheckpointFileError` for a broken one."""
        files = sorted((checkpoint / FOLDER).glob("*.safetensors"))
        return cls({file.stem: read_voice(file) for file in files})

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._voices)

    @property
    def default(self) -> Voice | None:
        """The voice that speaks when none is asked for."""
        return next((voice.voice for voice in self._voices.values() if voice.is_default), None)

    def describe(self, name: str) -> NamedVoice:
        """Give one voice. Raises `VoiceError` for a name that is not there."""
        if name not in self._voices:
            known = ", ".join(self.names) or "none"
            raise VoiceError("voice", f"{name!r} is not a voice of this checkpoint; there are: {known}")
        return self._voices[name]


def read_voice(path: Path) -> NamedVoice:
    """Read one voice file. Raises `CheckpointFileError` if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            codes, metadata = file.get_tensor("codes").to(torch.int64), file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointFileError(f"{path} is no voice file: {error}") from None
    voice = Voice(codes, metadata.get("text", ""))
    return NamedVoice(path.stem, voice, metadata.get("description", ""), metadata.get("default") == "true")


def write_voice(folder: Path, name: str, voice: Voice, *, description: str = "", is_default: bool = False) -> Path:
    """Write one voice file into `folder`. Raises `VoiceError` for a name that cannot be a file's everywhere."""
    if not NAME.fullmatch(name):
        raise VoiceError("voice", f"{name!r} is no name; use up to 64 of a-z, 0-9, - and _, beginning with a-z or 0-9")
    path = folder / f"{name}.safetensors"
    metadata = {"text": voice.text, "description": description, "default": "true" if is_default else "false"}
    save_file({"codes": voice.codes.to(torch.int16).contiguous()}, path, metadata=metadata)
    path.chmod(0o644)
    return path
