"""The content of an artifact: every file by its path, its size, and how its bytes are made.

the files of the checkpoint, as its family says                           copied, weights converted
voices/NAME.safetensors                                                   named voices, encoded
code/inference.py, code/requirements.txt                                  for SageMaker's toolkits
compile_cache/GPU-TORCH/…                                                 if asked for
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from s1_mini.exceptions import CheckpointFileError, PackageError, VoiceError
from s1_mini.families.base import CodecPrecision, Conversion, ModelPrecision
from s1_mini.families.registry import family_of
from s1_mini.packaging.compile_cache import FOLDER as CACHE
from s1_mini.packaging.compile_cache import KEY, cache_key, is_cache
from s1_mini.packaging.manifest import check_names
from s1_mini.voices.format import VoiceFormat
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.voices.library import NAME as VOICE_NAME
from s1_mini.voices.library import read_voice
from s1_mini.weights.write import Member, copied, written

_WELCOME = ("CARD.md", "LICENSE", "LICENSE.md", "LICENSE.txt")  # a checkpoint's licence goes where it goes

INFERENCE = "\n".join(  # sagemaker/code/inference.py, for those who have no checkout
    (
        '"""What SageMaker\'s inference toolkits load from `model.tar.gz` as `code/inference.py`: '
        'the four functions, no more."""',
        "",
        "from s1_mini.sagemaker.handler import input_fn, model_fn, output_fn, predict_fn",
        "",
        '__all__ = ["input_fn", "model_fn", "output_fn", "predict_fn"]',
        "",
    )
)


def lay_out(
    checkpoint: Path,
    *,
    voices: Path | None = None,
    precision: ModelPrecision = "keep",
    codec_precision: CodecPrecision = "float16",
    decode_only: bool = False,
    compile_cache: Path | None = None,
    compile_key: str | None = None,
) -> list[Member]:
    """Return all members of the artifact of a checkpoint directory, in their order.

    The weights are checked against their config now, and read when their chunks are asked for. Raises
    `CheckpointError`, or `VoiceError` where two voices have one name.
    """
    family = family_of(checkpoint)
    members = [
        *family.files(checkpoint, Conversion(precision, codec_precision, decode_only=decode_only)),
        *(copied(checkpoint / name, name) for name in _WELCOME if (checkpoint / name).is_file()),
        *_voices(checkpoint, voices, family.describe(checkpoint).voice),
        written("code/inference.py", INFERENCE),
        written("code/requirements.txt", _requirements()),
        *([] if compile_cache is None else _compile_cache(compile_cache, compile_key or cache_key())),
    ]
    check_names([member.name for member in members])
    return sorted(members, key=lambda member: member.name)


def _voices(checkpoint: Path, more: Path | None, form: VoiceFormat) -> list[Member]:
    folders = [checkpoint / VOICES] if more is None else [checkpoint / VOICES, more]
    if more is not None and not more.is_dir():
        raise VoiceError("voices", f"{more} is no folder")
    if more is not None and not any(more.glob("*.safetensors")):
        raise VoiceError("voices", f"{more} holds no NAME.safetensors")
    found: dict[str, Path] = {}
    defaults = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.safetensors"))):
        if path.stem in found:
            raise VoiceError("voices", f"{path.stem!r} is there twice: {found[path.stem]} and {path}")
        found[path.stem] = path
        defaults += [path.stem] if _check_voice(path, form) else []
    if len(defaults) > 1:
        raise VoiceError("voices", f"there may be one default; these are: {', '.join(defaults)}")
    return [copied(path, f"{VOICES}/{path.name}") for path in found.values()]


def _check_voice(path: Path, form: VoiceFormat) -> bool:
    """Return whether a voice file is the default. Raises `CheckpointFileError` if this checkpoint cannot use it."""
    if not VOICE_NAME.fullmatch(path.stem):
        raise VoiceError("voices", f"{path.stem!r} is no name; use up to 64 of a-z, 0-9, - and _")
    try:
        return read_voice(path, form).is_default
    except CheckpointFileError as error:
        raise CheckpointFileError(f"{error}; get or make this file again, or leave it out") from None


def _compile_cache(folder: Path, key: str) -> list[Member]:
    if not KEY.fullmatch(key):
        raise PackageError(f"compile cache: {key!r} is no key; one is GPU and torch, as in sm_90-torch2.13.0")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if not files or not is_cache(folder):
        raise PackageError(f"compile cache: {folder} holds no compiled kernels; S1_MINI_COMPILE_CACHE_PATH names one")
    return [copied(path, f"{CACHE}/{key}/{path.relative_to(folder).as_posix()}") for path in files]


def _requirements() -> str:
    """Return requirements of the toolkits' handler: installed versions, else the supported ranges."""
    lines = [
        "# What the engine in the image runs on, in the versions that this artifact was packaged with. Our own image",
        "# has all of it and installs nothing when it starts; the engine itself (s1_mini) is always the image's.",
    ]
    return "\n".join([*lines, *sorted(map(_pinned, _direct_requirements())), ""])


def _pinned(requirement: str) -> str:
    name = re.split(r"[^\w.-]", requirement)[0]
    try:
        return f"{name}=={metadata.version(name).partition('+')[0]}"
    except metadata.PackageNotFoundError:  # of the extra `server`, which packaging does without
        return requirement


def _direct_requirements() -> list[str]:
    """Return the lines of a plain install and of the extra `server`, without markers and comments."""
    try:
        told = metadata.requires("s1-mini") or []
        wanted = [line for line in told if re.search("extra == .(?!server)", line) is None]
    except metadata.PackageNotFoundError:
        beside = [Path(__file__).parents[3] / f"requirements{part}.txt" for part in ("", "-server")]
        if not all(file.is_file() for file in beside):
            raise PackageError("s1_mini is not installed: run `pip install -e .` in its checkout") from None
        wanted = [line for file in beside for line in file.read_text(encoding="utf-8").splitlines()]
    return [found for line in wanted if (found := re.split(r"[;#]", line)[0].strip())]
