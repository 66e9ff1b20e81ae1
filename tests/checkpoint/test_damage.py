"""Damaged checkpoint files are either read or refused with a clear error; no other exception is raised."""

from __future__ import annotations

import json
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from s1_mini.codecs.dac import weights as dac_weights
from s1_mini.exceptions import CheckpointError
from s1_mini.families.s1 import weights as s1_weights
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.packaging.verify import Content, Manifest
from s1_mini.packaging.write import lay_out
from s1_mini.types import Voice
from s1_mini.voices.library import read_summary, read_voice, write_voice
from s1_mini.weights.files import read_tensors
from voice_formats import BOOKS, voice_format

MUTATIONS = 60  # cases per kind of file; 3,000 of each with other seeds found nothing more


def damage(content: bytes, draw: random.Random) -> bytes:
    """Flip, change, cut, repeat, drop or insert bytes; most often near the ends, where formats keep their headers."""
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        size = len(damaged)
        if not size:
            break
        near = draw.choice((min(size, 2048), size))
        at = draw.choice((draw.randrange(near), size - 1 - draw.randrange(near)))
        end = at + draw.randrange(1, 64)
        match draw.randrange(7):
            case 0:
                damaged[at] ^= 1 << draw.randrange(8)
            case 1:
                damaged[at] = draw.randrange(256)
            case 2:
                del damaged[at:]
            case 3:
                damaged[at:at] = damaged[at:end]
            case 4:
                del damaged[at:end]
            case 5:
                start = draw.randrange(size)
                damaged[at:end] = damaged[start : start + end - at]
            case _:
                damaged[at:at] = draw.randbytes(end - at)
    return bytes(damaged)


@pytest.fixture
def checkpoint(oracle: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint."""
    return shutil.copytree(oracle, tmp_path / "c", ignore=shutil.ignore_patterns("oracle.pt"))


def pth(folder: Path, *, zipped: bool = True) -> Path:
    tensors = dict(list(load_file(folder / "model.safetensors").items())[:12])
    torch.save({"state_dict": tensors}, folder / "model.pth", _use_new_zipfile_serialization=zipped)
    return folder / "model.pth"


def voice(folder: Path, description: str = "Made up.") -> Path:
    made = Voice({"codes": torch.zeros(BOOKS, 20, dtype=torch.int64)}, "Hello.")
    return write_voice(folder, "anna", made, description=description)


def safetensors(folder: Path) -> Path:
    tensors = dict(list(load_file(folder / "model.safetensors").items())[:6])
    save_file(tensors, folder / "some.safetensors", metadata={"format": "pt"})
    return folder / "some.safetensors"


def index(folder: Path) -> Path:
    save_file({name: torch.zeros(2) for name in "abc"}, folder / "one.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys("abc", "one.safetensors")}))
    return path


def manifest(folder: Path) -> Path:
    written = Manifest("1", "2", {"config.json": Content("0" * 64, 1), "voices/anna.safetensors": Content("1" * 64, 2)})
    (folder / "manifest.json").write_bytes(written.to_bytes())
    return folder / "manifest.json"


def check_model(path: Path) -> None:
    S1Tokenizer.from_directory(path.parent)
    s1_weights.check(path.parent, s1_weights.translate(read_tensors(path.parent / "model.safetensors")))


def check_codec(path: Path) -> None:
    tensors = dac_weights.translate(read_tensors(path.parent / "codec.safetensors"))
    dac_weights.check(dac_weights.read_dac_config(path.parent), tensors, encodes=True)


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "pth": (pth, read_tensors),
    "old pth": (lambda folder: pth(folder, zipped=False), read_tensors),
    "safetensors": (safetensors, read_tensors),
    "index": (index, read_tensors),
    "voice": (voice, lambda path: (read_voice(path, voice_format()), read_summary(path, voice_format()))),
    "manifest": (manifest, lambda path: Manifest.from_bytes(path.read_bytes())),
    "config.json": (lambda folder: folder / "config.json", check_model),
    "special_tokens.json": (lambda folder: folder / "special_tokens.json", check_model),
    "tokenizer.tiktoken": (lambda folder: folder / "tokenizer.tiktoken", check_model),
    "codec_config.json": (lambda folder: folder / "codec_config.json", check_codec),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_are_read_or_refused(kind: str, checkpoint: Path) -> None:
    make, read = KINDS[kind]
    path = make(checkpoint)
    content, draw = path.read_bytes(), random.Random(kind)
    refused = 0

    for _ in range(MUTATIONS):
        path.unlink()  # a memory-mapped file must not change
        path.write_bytes(damage(content, draw))
        try:
            read(path)
        except CheckpointError:
            refused += 1

    assert refused > MUTATIONS / 10


def test_a_damaged_pickle_in_a_whole_archive_is_read_or_refused(checkpoint: Path) -> None:
    """The checksum is correct, so the damaged bytes reach torch."""
    path = pth(checkpoint)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    draw = random.Random(1)

    for _ in range(3 * MUTATIONS):
        path.unlink()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in records.items():
                archive.writestr(name, damage(content, draw) if name.endswith(".pkl") else content)
        with suppress(CheckpointError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about protocols
            read_tensors(path)


def manifest_of(path: Path, files: dict[str, tuple[str, float]]) -> bytes:
    """Return a manifest that is correct except for its files."""
    written: Any = {name: Content(sha256, size) for name, (sha256, size) in files.items()}
    with suppress(UnicodeEncodeError):
        return Manifest("1", "2", written).to_bytes()
    output = {name: {"sha256": sha256, "bytes": size} for name, (sha256, size) in files.items()}
    return json.dumps(json.loads(path.read_bytes()) | {"files": output}).encode()


def changed(path: Path, **values: Any) -> bytes:
    return json.dumps(json.loads(path.read_bytes()) | values).encode()


HASH = "0" * 64
BROKEN: list[tuple[str, Callable[[Path], bytes], str]] = [
    ("special_tokens.json", lambda path: changed(path, **{f"<|semantic:{'0' * 5000}|>": 9999}), "9999"),
    ("special_tokens.json", lambda path: path.read_bytes() + b" " * 2**22, "the limit is 4,194,304"),
    ("tokenizer.tiktoken", lambda path: path.read_bytes() + b"= \n" * 2**22, "the limit is 8,388,608"),
    ("config.json", lambda path: changed(path, n_layer=[1] * 100_000), "n_layer"),
    ("codec_config.json", lambda path: changed(path, encoder_rates=[1] * 100_000), "encoder_rates"),
    ("voice", lambda path: voice(path.parent, "d" * 3 * 2**20).read_bytes(), "limit for a voice.* is 2,097,152"),
    ("manifest", lambda path: manifest_of(path, {"a": (HASH, float("inf"))}), "not a manifest"),
    ("manifest", lambda path: manifest_of(path, {"\ud800": (HASH, 1)}), "characters that are not allowed in a path"),
    ("manifest", lambda path: manifest_of(path, {"a": ("\ud800", 1)}), "not a manifest"),
    ("manifest", lambda path: manifest_of(path, {"a/" * 2000 + "a": (HASH, 1)}), "longer than 1,024 bytes"),
    ("manifest", lambda path: manifest_of(path, {f"{n}": (HASH, 1) for n in range(20_000)}), "more than 10,000 files"),
]


@pytest.mark.parametrize(("kind", "content", "told"), BROKEN)
def test_values_impossible_in_a_checkpoint_are_refused_in_a_short_sentence(
    kind: str, content: Callable[[Path], bytes], told: str, checkpoint: Path
) -> None:
    make, read = KINDS[kind]
    path = make(checkpoint)
    path.write_bytes(content(path))

    with pytest.raises(CheckpointError, match=told) as caught:
        read(path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["config.json", "tokenizer.tiktoken"])
def test_a_folder_in_place_of_a_file_is_refused(name: str, checkpoint: Path) -> None:
    (checkpoint / name).unlink()
    (checkpoint / name).mkdir()

    with pytest.raises(CheckpointError, match="not a regular file"):
        check_model(checkpoint / name)


def test_metadata_that_looks_like_a_tensor_is_ignored(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    save_file(tensors, checkpoint / "model.safetensors", metadata={"dtype": "F32"})

    assert lay_out(checkpoint)
