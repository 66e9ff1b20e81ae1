"""What a worker has to know beside the texts, and what all of a corpus depends on. Loads no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from s1_mini.config import EngineConfig, set_variable
from s1_mini.corpus.source import Source, describe_source
from s1_mini.corpus.write import Layout
from s1_mini.families.find import find_checkpoint
from s1_mini.families.registry import family_settings
from s1_mini.types import AudioFormat
from s1_mini.version import __version__

# Settings that change what is heard, or what is refused; families' own are added.
AUDIBLE = (
    *("device", "placement", "precision", "codec_dtype", "weights_dtype", "kv_dtype", "compile", "compile_backend"),
    *("max_columns", "max_text_length", "chunk_length"),
)
ANY_NUMBER = 2**30  # of sentences may wait: the texts in flight bound them


@dataclass(frozen=True)
class Job:
    """How a worker speaks, and where it writes. It is sent to other machines as it is."""

    config: EngineConfig
    output: str
    layout: Layout
    audio_format: AudioFormat
    header: Mapping[str, Any]
    voice: str | None = None  # of all texts that name none
    in_flight: int | None = None  # texts that the engine has at a time; None: twice its slots
    shard_size: int = 256


def for_many(config: EngineConfig) -> EngineConfig:
    """Let texts wait as long as they have to: none of them has a person waiting for it."""
    values: dict[str, object] = {"max_queue_size": ANY_NUMBER}
    if set_variable("request_timeout_s") is None:
        values["request_timeout_s"] = float("inf")
    return config.model_copy(update=values)


def make_header(source: Source, config: EngineConfig, layout: Layout, audio_format: AudioFormat) -> dict[str, Any]:
    """Tell all that the bytes of a corpus depend on. Raises `CheckpointNotFoundError`."""
    audible = {*AUDIBLE, *(name for kind in family_settings() for name in kind.model_fields)}
    return {
        "version": __version__,
        "input": describe_source(source),
        "columns": asdict(source.columns),
        "defaults": asdict(source.defaults),
        "shard_size": source.shard_size,
        "layout": layout,
        "audio_format": audio_format,
        **fingerprints(config),
        "settings": config.model_dump(mode="json", include=audible),
    }


def fingerprints(config: EngineConfig) -> dict[str, str | None]:
    """Give the hashes of all files of the checkpoint and of the added voices."""
    voices = config.voices_path
    return {
        "checkpoint": _fingerprint(find_checkpoint(config.checkpoint_path)),
        "added_voices": None if voices is None or not voices.is_dir() else _fingerprint(voices),
    }


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{content} {path.relative_to(folder).as_posix()}\n".encode())
    return digest.hexdigest()
