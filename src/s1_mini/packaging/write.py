"""Write artifacts and converted checkpoints. After an error, partial output is removed.

Only `write_alignment` replaces an existing file, a checkpoint's `config.json`.

An artifact has one of two forms. In both, each file is hashed while it is written, and the manifest is written last.
`archive` is one reproducible `.tar.gz` for `ModelDataUrl` with fixed times, owners, modes and order; `prefix` is a
folder of plain files for an uncompressed `ModelDataSource`. Both contain::

    the files of the checkpoint, as listed by its family                      copied, weights converted
    CARD.md, LICENSE, LICENSE.md, LICENSE.txt                                 if the checkpoint has them
    voices/NAME.safetensors                                                   named voices, encoded
    code/inference.py, code/requirements.txt                                  for SageMaker's toolkits
    compile_cache/GPU-TORCH/…                                                 if requested
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, cast

import torch

from s1_mini.alignment.head import AlignmentHead
from s1_mini.exceptions import CheckpointFileError, CheckpointNotFoundError, PackageError, VoiceError
from s1_mini.families.alignment import KEY
from s1_mini.families.base import Conversion
from s1_mini.families.registry import family_of
from s1_mini.files import files
from s1_mini.packaging.compile_cache import FOLDER as CACHE
from s1_mini.packaging.compile_cache import KEY as CACHE_KEY
from s1_mini.packaging.compile_cache import cache_key, is_cache
from s1_mini.packaging.verify import MANIFEST, Content, Manifest, check_names
from s1_mini.version import __version__
from s1_mini.voices.format import VoiceFormat
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.voices.library import SUFFIX, check_name, read_voice
from s1_mini.weights.directory import DEFAULT_MODEL, read_json
from s1_mini.weights.hub import ORIGIN_FILE, ORIGIN_KEY, Origin, origin_of
from s1_mini.weights.write import (
    ArchiveEntry,
    Chunk,
    check_new_file,
    copied,
    new_directory,
    write_json,
    write_member,
    written,
)

Progress = Callable[[int], None]  # receives the number of bytes written since the previous call

# sagemaker/code/inference.py, for an installation without a checkout
INFERENCE = '''\
"""The four functions that SageMaker's inference toolkits load from `code/inference.py` of `model.tar.gz`."""

from s1_mini.sagemaker.handler import input_fn, model_fn, output_fn, predict_fn

__all__ = ["input_fn", "model_fn", "output_fn", "predict_fn"]
'''
KEPT = Conversion()
_REQUIREMENTS_HEAD = (
    "# Dependencies of the engine, with the versions at packaging time. Our image has all of them and installs nothing",
    "# when it starts; s1_mini itself always comes from the image.",
)
_WELCOME = ("CARD.md", "LICENSE", "LICENSE.md", "LICENSE.txt")  # the licence accompanies the weights
PUBLISHED_VOICES = {".npy", ".npz"}


def lay_out(
    checkpoint: Path,
    conversion: Conversion = KEPT,
    *,
    voices: Path | None = None,
    compile_cache: Path | None = None,
    compile_key: str | None = None,
) -> list[ArchiveEntry]:
    """Return all members of the artifact of a checkpoint directory, in order.

    The weights are checked against their config now, and converted when their chunks are requested. Raises
    `CheckpointError`, `ParameterError` for a precision that the family does not support, or `VoiceError` if `voices`
    has no voices, a name is invalid or occurs twice, or two voices are the default.
    """
    family = family_of(checkpoint)
    members = [
        *_voices(checkpoint, voices, family.describe(checkpoint).voice),
        *family.files(checkpoint, conversion),
        *(copied(checkpoint / name, name) for name in _WELCOME if (checkpoint / name).is_file()),
        written("code/inference.py", INFERENCE),
        written("code/requirements.txt", _requirements()),
        *([] if compile_cache is None else _compile_cache(compile_cache, compile_key or cache_key())),
    ]
    check_names([member.name for member in members])
    return sorted(members, key=lambda member: member.name)


def _voices(checkpoint: Path, more: Path | None, form: VoiceFormat) -> list[ArchiveEntry]:
    if more is not None and not more.is_dir():
        raise VoiceError("voices", f"{more} is not a folder")
    if more is not None and not any(more.glob("*.safetensors")):
        raise VoiceError("voices", f"{more} has no voice files (NAME.safetensors)")
    found: dict[str, Path] = {}
    defaults = []
    for folder in (checkpoint / VOICES, *([] if more is None else [more])):
        for path in sorted(folder.glob("*.safetensors")):
            if path.stem in found:
                raise VoiceError("voices", f"{path.stem!r} occurs twice: {found[path.stem]} and {path}")
            check_name(path.stem, "voices")
            found[path.stem] = path
            try:
                defaults += [path.stem] if read_voice(path, form).is_default else []
            except CheckpointFileError as error:
                raise CheckpointFileError(f"{error}; recreate this file, or leave it out") from None
    if len(defaults) > 1:
        raise VoiceError("voices", f"only one voice can be the default; found: {', '.join(defaults)}")
    return [copied(path, f"{VOICES}/{path.name}") for path in found.values()]


def _compile_cache(folder: Path, key: str) -> list[ArchiveEntry]:
    if not CACHE_KEY.fullmatch(key):
        raise PackageError(f"compile cache: {key!r} is not a key; name GPU and torch, such as sm_90-torch2.13.0")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if not paths or not is_cache(folder):
        raise PackageError(
            f"compile cache: {folder} has no compiled kernels; give the folder that S1_MINI_COMPILE_CACHE_PATH named "
            "when they were compiled"
        )
    return [copied(path, f"{CACHE}/{key}/{path.relative_to(folder).as_posix()}") for path in paths]


def _requirements() -> str:
    """Return the requirements of the toolkits' handler: the installed versions, or the supported ranges."""
    try:
        lines = [line for line in metadata.requires("s1-mini") or [] if not re.search("extra == .(?!server)", line)]
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        lists = [Path(__file__).parents[3] / f"requirements{part}.txt" for part in ("", "-server")]
        if not all(path.is_file() for path in lists):
            raise PackageError("s1_mini is not installed: run `pip install -e .` in its checkout") from None
        lines = [line for path in lists for line in path.read_text(encoding="utf-8").splitlines()]
    ranges = filter(None, (re.split(r"[;#]", line)[0].strip() for line in lines))
    return "\n".join([*_REQUIREMENTS_HEAD, *sorted(map(_pinned, ranges)), ""])


def _pinned(requirement: str) -> str:
    name = re.split(r"[^\w.-]", requirement)[0]
    try:
        return f"{name}=={metadata.version(name).partition('+')[0]}"
    except metadata.PackageNotFoundError:  # belongs to the extra `server`, which packaging does not need
        return requirement


def write_archive(
    members: Iterable[ArchiveEntry], output: Path, *, origin: Origin | None = None, progress: Progress = lambda _: None
) -> Manifest:
    """Write a new `.tar.gz`, the same bytes for the same members. Raises `CheckpointError`."""
    contents: dict[str, Content] = {}
    # Weights hardly compress, so nothing is compressed.
    with _new_file(output) as file, gzip.GzipFile("", "wb", compresslevel=0, fileobj=file, mtime=0) as archive:
        for member in members:
            _add(archive, member, _hashed(member, contents, progress))
        manifest = _manifest(contents, origin)
        text = written(MANIFEST, manifest.to_bytes().decode())
        _add(archive, text, text.chunks())
        archive.write(bytes(2 * tarfile.BLOCKSIZE))
        archive.write(bytes(-archive.tell() % tarfile.RECORDSIZE))
    return manifest


def write_prefix(
    members: Iterable[ArchiveEntry], output: Path, *, origin: Origin | None = None, progress: Progress = lambda _: None
) -> Manifest:
    """Write a new folder of plain files. Raises `CheckpointError`."""
    contents: dict[str, Content] = {}
    with new_directory(output) as folder:
        for member in members:
            write_member(folder, member, _hashed(member, contents, progress))
        manifest = _manifest(contents, origin)
        (folder / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def convert_checkpoint(source: Path, target: Path, conversion: Conversion = KEPT) -> dict[str, int]:
    """Write `source` in compact form to the new directory `target`; return the bytes of each file written.

    The weights are checked against their config before anything is written. Raises `CheckpointError`, or
    `ParameterError` for a precision that the family does not support.
    """
    if not source.is_dir():
        raise CheckpointNotFoundError(f"{source} is not a checkpoint directory")
    origin = origin_of(source)
    with new_directory(target) as folder:
        for member in family_of(source).files(source, conversion):
            write_member(folder, member)
        if (source / VOICES).is_dir():
            shutil.copytree(source / VOICES, folder / VOICES, dirs_exist_ok=True, ignore=_replaced(folder / VOICES))
        if origin is not None:
            write_json(folder / ORIGIN_FILE, {ORIGIN_KEY: origin.data()})
    paths = sorted(path for path in target.rglob("*") if path.is_file())
    return {path.relative_to(target).as_posix(): path.stat().st_size for path in paths}


def find_own_config(directory: Path) -> Path:
    """Return the `config.json` of a checkpoint if it may be changed. Raises `CheckpointFileError` otherwise."""
    path = directory / "config.json"
    if directory == DEFAULT_MODEL or path.is_symlink() or (directory / MANIFEST).exists():
        raise CheckpointFileError(
            f"{path} must not be changed: it belongs to the built-in voice, the hub's cache or a packaged artifact; "
            "change a copy that `s1-mini convert` writes"
        )
    return path


def write_alignment(directory: Path, head: AlignmentHead) -> None:
    """Write the attention head that follows the text into a checkpoint's config. Raises `CheckpointFileError`."""
    path = find_own_config(directory)
    config = read_json(path) | {KEY: asdict(head)}
    try:
        files.publish(path, (json.dumps(config, indent=2) + "\n").encode())
    except OSError as error:
        raise CheckpointFileError(f"{path} cannot be written: {error.strerror or error}") from None


def _replaced(voices: Path) -> Callable[[str, list[str]], list[str]]:
    """Return a filter for published voice files that also exist in the engine's format, next to them or in `voices`."""

    def ignored(_: str, names: list[str]) -> list[str]:
        compact = {name: Path(name).with_suffix(SUFFIX).name for name in names if Path(name).suffix in PUBLISHED_VOICES}
        return [name for name, other in compact.items() if other in names or (voices / other).exists()]

    return ignored


def _add(archive: gzip.GzipFile, member: ArchiveEntry, chunks: Iterable[Chunk]) -> None:
    header = tarfile.TarInfo(member.name)
    header.size, header.mode, header.mtime = member.size, 0o644, 0
    archive.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8"))
    end = archive.tell() + member.size
    for chunk in chunks:
        archive.write(chunk)
    assert archive.tell() == end, f"{member.name}: {archive.tell() - end} bytes more than announced"
    archive.write(bytes(-member.size % tarfile.BLOCKSIZE))


def _hashed(member: ArchiveEntry, contents: dict[str, Content], progress: Progress) -> Iterator[Chunk]:
    """Yield the chunks of a member; add its hash and size to `contents` at the end."""
    sha256, size = hashlib.sha256(), 0
    for chunk in member.chunks():
        sha256.update(chunk)
        size += len(chunk)
        yield chunk
        progress(len(chunk))
    contents[member.name] = Content(sha256.hexdigest(), size)


def _manifest(contents: dict[str, Content], origin: Origin | None) -> Manifest:
    return Manifest(__version__, torch.__version__.partition("+")[0], contents, origin)


@contextmanager
def _new_file(output: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file, which is renamed to `output` at the end and removed if anything fails."""
    check_new_file(output)
    path = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{output.name}-", dir=output.parent, delete=False) as file:
            path = Path(file.name)
            yield cast("BinaryIO", file)
        path.chmod(0o644)  # tempfile makes private files
        files.rename_to_new(path, output)
    except OSError as error:
        raise PackageError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
