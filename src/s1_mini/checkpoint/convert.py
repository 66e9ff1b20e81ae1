"""Write a checkpoint in the compact form: safetensors, without what is never read; which precision, its family says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from s1_mini.exceptions import CheckpointNotFoundError
from s1_mini.families.base import CodecPrecision, Conversion, ModelPrecision
from s1_mini.families.registry import family_of
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.voices.library import SUFFIX
from s1_mini.weights.origin import FILE as ORIGIN_FILE
from s1_mini.weights.origin import KEY as ORIGIN
from s1_mini.weights.origin import origin_of
from s1_mini.weights.write import new_directory, write_json, write_member

PUBLISHED_VOICES = {".npy", ".npz"}


def convert_checkpoint(
    source: Path,
    target: Path,
    *,
    precision: ModelPrecision = "keep",
    codec_precision: CodecPrecision = "float16",
    decode_only: bool = False,
) -> dict[str, int]:
    """Write `source` in compact form to the new directory `target`; give the bytes of each file written.

    `decode_only` leaves out what only encodes references: smaller, but they can no longer be encoded.
    Raises `CheckpointError`; the weights are checked against their config before anything is written.
    """
    if not source.is_dir():
        raise CheckpointNotFoundError(f"{source} is no checkpoint directory")
    origin = origin_of(source)
    members = family_of(source).files(source, Conversion(precision, codec_precision, decode_only=decode_only))
    with new_directory(target) as folder:
        for member in members:
            write_member(folder, member)
        if (source / VOICES).is_dir():
            shutil.copytree(source / VOICES, folder / VOICES, dirs_exist_ok=True, ignore=_replaced(folder / VOICES))
        if origin is not None:
            write_json(folder / ORIGIN_FILE, {ORIGIN: origin.data()})
    files = sorted(path for path in target.rglob("*") if path.is_file())
    return {path.relative_to(target).as_posix(): path.stat().st_size for path in files}


def _replaced(voices: Path) -> Callable[[str, list[str]], list[str]]:
    """Return a filter of published voice files that exist in the engine's format, in `voices` or beside them."""

    def ignored(_: str, names: list[str]) -> list[str]:
        published = [name for name in names if Path(name).suffix in PUBLISHED_VOICES]
        compact = {name: Path(name).with_suffix(SUFFIX).name for name in published}
        return [name for name in published if compact[name] in names or (voices / compact[name]).exists()]

    return ignored
