"""Configuration of a corpus worker, and the fingerprint of everything that its audio depends on, without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from s1_mini.audio.container import SOURCE_TYPE
from s1_mini.config import EngineConfig, set_variable
from s1_mini.corpus.manifest import Layout
from s1_mini.corpus.rows import CorpusError
from s1_mini.corpus.source import Source, sha256_of
from s1_mini.families.registry import family_settings
from s1_mini.packaging.verify import open_checkpoint
from s1_mini.types import AudioFormat
from s1_mini.version import __version__
from s1_mini.voices.library import SUFFIX, is_name
from s1_mini.voices.registry import unread_recordings

# Settings that change the audio or which texts are refused; those of the families are added.
AUDIBLE = (
    *("device", "placement", "precision", "codec_dtype", "weights_dtype", "kv_dtype", "compile", "compile_backend"),
    *("max_columns", "max_text_length", "chunk_length", "normalize", "on_unsupported"),
)
ANY_NUMBER = 2**30  # no queue limit, because the number of texts in flight is limited


@dataclass(frozen=True)
class Job:
    """The task of a worker: what to speak with, and where to write. The same object is sent to all machines."""

    config: EngineConfig
    output: str
    layout: Layout
    audio_format: AudioFormat
    header: Mapping[str, Any]
    voice: str | None = None  # for texts without a voice
    voices: frozenset[str] = frozenset()  # allowed in texts
    in_flight: int | None = None  # concurrent texts of an engine; None: twice its slots
    shard_size: int = 256


def for_many(config: EngineConfig) -> EngineConfig:
    """Return the settings for a batch job: texts may wait in the queue without limit."""
    values: dict[str, object] = {"max_queue_size": ANY_NUMBER}
    if set_variable("request_timeout_s") is None:
        values["request_timeout_s"] = float("inf")
    return config.model_copy(update=values)


def make_header(source: Source, config: EngineConfig, layout: Layout, audio_format: AudioFormat) -> dict[str, Any]:
    """Return everything that the bytes of a corpus depend on. Raises the errors of `fingerprints`."""
    audible = {*AUDIBLE, *(name for kind in family_settings() for name in kind.model_fields)}
    return {
        "version": __version__,
        "input": source.describe(),
        "columns": asdict(source.columns),
        "defaults": asdict(source.defaults),
        "shard_size": source.shard_size,
        "layout": layout,
        "audio_format": audio_format,
        "digital_source_type": SOURCE_TYPE if config.label_audio else None,
        **fingerprints(config, source.voices),
        "settings": config.model_dump(mode="json", include=audible),
    }


def fingerprints(config: EngineConfig, voices: Iterable[str]) -> dict[str, Any]:
    """Return the hashes of the checkpoint and of the added voices among `voices`.

    Raises `CheckpointError`, `ConfigurationError` or `CorpusError`.
    """
    folder = config.voices_path
    return {
        "checkpoint": _fingerprint(open_checkpoint(config).directory),
        "added_voices": {} if folder is None or not folder.is_dir() else _voices(folder, voices),
    }


def _voices(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Hash added voices. Raises `CorpusError` for a recording that is not encoded yet: its hash would not be final."""
    unread = {recording.name: recording.audio for recording in unread_recordings(folder)}
    found = {}
    for name in sorted({name.strip().lower() for name in names}):
        if name in unread:
            raise CorpusError(
                f"voice {name!r} is a recording in {folder} that is not encoded yet; run first: "
                f"s1-mini voices add {name} {unread[name]} --text ... --replace"
            )
        if is_name(name) and (made := folder / f"{name}{SUFFIX}").is_file():
            found[name] = sha256_of(made)
    return found


def _fingerprint(folder: Path) -> str:
    """Hash all files of a checkpoint except hidden ones, which describe its download."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if not any(part.startswith(".") for part in name.parts):
            digest.update(f"{sha256_of(path)} {name.as_posix()}\n".encode())
    return digest.hexdigest()
