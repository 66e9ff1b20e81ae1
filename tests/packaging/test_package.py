"""Packaging is reproducible, keeps the model's output, and detects files that differ from the manifest."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import CheckpointFileError, PackageError, VoiceError
from s1_mini.files import delete_temporary_folders
from s1_mini.packaging import compile_cache
from s1_mini.packaging.verify import Content, Manifest, check_kind, unpack_archive, verify_archive, verify_directory
from s1_mini.packaging.write import INFERENCE, convert_checkpoint, lay_out, write_archive, write_prefix
from s1_mini.types import Voice
from s1_mini.voices.library import write_voice
from voice_formats import BOOKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def archive(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packaged") / "model.tar.gz"
    write_archive(lay_out(published), output)
    return output


@pytest.fixture
def unpacked(archive: Path, tmp_path: Path) -> Path:
    unpack_archive(archive, tmp_path / "model")
    return tmp_path / "model"


def test_the_same_checkpoint_gives_the_same_bytes_whenever_and_by_however_many_threads(
    published: Path, archive: Path, tmp_path: Path
) -> None:
    shutil.copytree(published, tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        os.utime(path, (1, 1))
        path.chmod(0o600)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        write_archive(lay_out(tmp_path / "again"), tmp_path / "model.tar.gz")
    finally:
        torch.set_num_threads(threads)

    assert (tmp_path / "model.tar.gz").read_bytes() == archive.read_bytes()


def test_both_forms_hold_the_same_files(published: Path, unpacked: Path, tmp_path: Path) -> None:
    write_prefix(lay_out(published), tmp_path / "prefix")

    one, other = (
        {p.relative_to(d): p.read_bytes() for d in [d] for p in d.rglob("*") if p.is_file()}
        for d in (unpacked, tmp_path / "prefix")
    )
    assert one == other


def test_an_archive_is_one_that_other_programs_read(archive: Path) -> None:
    content = gzip.decompress(archive.read_bytes())

    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = tar.getmembers()
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}
    assert [m.name for m in members] == [*sorted(m.name for m in members[:-1]), "manifest.json"]
    if shutil.which("tar") and shutil.which("gzip"):
        assert b"config.json" in subprocess.check_output(["tar", "tzf", archive])


def test_weights_are_those_that_convert_writes(published: Path, unpacked: Path, tmp_path: Path) -> None:
    convert_checkpoint(published, tmp_path / "converted")

    for name in ("model.safetensors", "codec.safetensors"):
        assert (unpacked / name).read_bytes() == (tmp_path / "converted" / name).read_bytes()


def test_the_manifest_says_what_wrote_it_and_what_every_file_is(unpacked: Path) -> None:
    output = json.loads((unpacked / "manifest.json").read_text())

    files = sorted(p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file())
    assert sorted([*output["files"], "manifest.json"]) == files
    assert output["torch"] == torch.__version__.partition("+")[0]
    config = (unpacked / "config.json").read_bytes()
    assert output["files"]["config.json"] == {"sha256": hashlib.sha256(config).hexdigest(), "bytes": len(config)}


def test_the_toolkits_file_is_the_one_in_the_checkout() -> None:
    assert (ROOT / "sagemaker" / "code" / "inference.py").read_text() == INFERENCE


def test_the_requirements_of_the_toolkits_handler_are_pinned(unpacked: Path) -> None:
    lines = (unpacked / "code" / "requirements.txt").read_text().splitlines()

    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {"torch", "numpy", "fastapi"} <= set(pins)
    assert "matplotlib" not in pins


def test_voices_are_packaged_and_duplicate_names_are_refused(published: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write_voice(tmp_path / "mine", "anna", Voice({"codes": torch.zeros(BOOKS, 4, dtype=torch.int64)}, "Hello."))

    write_prefix(lay_out(published, voices=tmp_path / "mine"), tmp_path / "packaged")

    with ProductionTTSEngine(EngineConfig(checkpoint_path=tmp_path / "packaged", device="cpu")) as engine:
        assert engine.generate("Hi.", voice="anna", max_new_tokens=4).success
    with pytest.raises(VoiceError, match="'anna' occurs twice"):
        lay_out(tmp_path / "packaged", voices=tmp_path / "mine")
    (tmp_path / "mine" / "anna.safetensors").rename(tmp_path / "mine" / "Anna B.safetensors")
    with pytest.raises(VoiceError, match="voices: 'Anna B' is not a valid name; use 1 to 64 of a-z"):
        lay_out(published, voices=tmp_path / "mine")


def test_a_voice_of_another_codec_is_refused(published: Path, tmp_path: Path) -> None:
    write_voice(tmp_path, "anna", Voice({"codes": torch.full((BOOKS, 4), 4000)}, "Hello."))

    with pytest.raises(CheckpointFileError, match=r"anna.*encoded by a different codec; recreate this file"):
        lay_out(published, voices=tmp_path)


def test_existing_output_is_not_overwritten_and_a_failure_leaves_nothing(published: Path, tmp_path: Path) -> None:
    (tmp_path / "model.tar.gz").write_text("released")
    with pytest.raises(PackageError, match="already exists"):
        write_archive(lay_out(published), tmp_path / "model.tar.gz")
    assert (tmp_path / "model.tar.gz").read_text() == "released"

    members = lay_out(published)
    (tmp_path / "source").mkdir()
    source = shutil.copytree(published, tmp_path / "source", dirs_exist_ok=True)
    members = lay_out(source)
    (source / "tokenizer.tiktoken").unlink()
    with pytest.raises(PackageError, match="cannot be written"):
        write_archive(members, tmp_path / "other.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.tar.gz", "source"]


def test_a_compile_cache_is_used_only_on_its_own_platform(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache" / "triton").mkdir(parents=True)
    (tmp_path / "cache" / "triton" / "kernel.ptx").write_text("// compiled")
    for variable in compile_cache.VARIABLES:
        monkeypatch.setenv(variable, "")
    for key, is_used in ((compile_cache.cache_key(), True), ("sm_90-torch1.0.0", False)):
        write_prefix(lay_out(published, compile_cache=tmp_path / "cache", compile_key=key), tmp_path / key)

        used = compile_cache.use_cache(tmp_path / key)

        assert (used is not None) == is_used
        if used is not None:
            assert (used / "triton" / "kernel.ptx").read_text() == "// compiled"
            assert {Path(os.environ[variable]).parent for variable in compile_cache.VARIABLES} == {used}
            shutil.rmtree(used)
            for variable in compile_cache.VARIABLES:
                monkeypatch.setenv(variable, "")
    with pytest.raises(PackageError, match="is not a key"):
        lay_out(published, compile_cache=tmp_path / "cache", compile_key="../../etc")


def test_the_copy_of_a_compile_cache_is_deleted_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / compile_cache.FOLDER / compile_cache.cache_key() / "triton").mkdir(parents=True)
    for variable in compile_cache.VARIABLES:
        monkeypatch.setenv(variable, "")

    used = compile_cache.use_cache(tmp_path)

    assert used is not None
    assert used.is_dir()
    delete_temporary_folders()
    assert not used.exists()


def test_compiled_code_is_cached_in_the_configured_directory_unless_a_variable_overrides_it(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in compile_cache.VARIABLES:  # restored after the test
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    config = EngineConfig(checkpoint_path=tiny, device="cpu", compile_cache_path=tmp_path / "cache")

    with ProductionTTSEngine(config):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")
        assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"


# Refused folders and archives, each by name


def change(model: Path) -> None:
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)


def add_device(model: Path) -> None:
    os.mkfifo(model / "extra")


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (change, r"'model\.safetensors' is different from manifest\.json"),
    (lambda model: (model / "codec.safetensors").unlink(), r"'codec\.safetensors' is missing"),
    (
        lambda model: (model / "voices").mkdir() or (model / "voices" / "eve.safetensors").write_text("x"),
        "'voices/eve.safetensors' is not listed",
    ),
    (lambda model: (model / "link").symlink_to("/etc/passwd"), "'link' is a link"),
    (lambda model: (model / "voices").symlink_to("/etc", target_is_directory=True), "'voices' is a link"),
    (add_device, "'extra' is a pipe"),
    (lambda model: (model / "manifest.json").unlink(), r"no manifest\.json"),
    (lambda model: (model / "manifest.json").write_text("{}"), "not a manifest written by `s1-mini package`"),
]


class Status(NamedTuple):
    """Path status as Windows reports it."""

    st_mode: int
    st_reparse_tag: int


def test_a_junction_of_windows_is_refused_as_a_link() -> None:
    check_kind("voices", Status(stat.S_IFDIR, 0))
    with pytest.raises(PackageError, match="'voices' is a link"):
        check_kind("voices", Status(stat.S_IFDIR, 0xA0000003))


@pytest.mark.skipif(os.name == "nt", reason="makes links and pipes")
@pytest.mark.parametrize(("damage", "told"), DAMAGES)
def test_a_folder_that_differs_from_its_manifest_is_refused_by_name(
    unpacked: Path, damage: Callable[[Path], object], told: str
) -> None:
    damage(unpacked)

    with pytest.raises(PackageError, match=told):
        verify_directory(unpacked)


def test_a_file_of_another_size_is_refused_before_any_is_read(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s1_mini.packaging.verify._hash_file", lambda path: pytest.fail(f"{path} is read"))
    (unpacked / "config.json").write_text("{}")

    with pytest.raises(PackageError, match=r"'config\.json' is different from manifest\.json"):
        verify_directory(unpacked)


def test_a_manifest_that_cannot_be_read_is_refused_by_name(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)

    with pytest.raises(PackageError, match=r"manifest\.json cannot be read: Permission denied"):
        verify_directory(unpacked)


def test_the_engine_refuses_a_changed_artifact_before_the_device_is_touched(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("the device was touched")

    monkeypatch.setattr("s1_mini.engine.load", touched)
    change(unpacked)

    with pytest.raises(PackageError, match=r"model\.safetensors"):
        ProductionTTSEngine(EngineConfig(checkpoint_path=unpacked, device="cpu")).start()


def test_files_left_by_volumes_and_the_toolkit_are_ignored(unpacked: Path) -> None:
    (unpacked / "lost+found").mkdir()
    (unpacked / "code" / "__pycache__").mkdir()
    (unpacked / "code" / "__pycache__" / "inference.cpython-311.pyc").write_bytes(b"")

    assert verify_directory(unpacked).files


def member(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


EVIL: list[tuple[tuple[tarfile.TarInfo, bytes], str]] = [
    (member("link", tarfile.SYMTYPE, linkname="/etc/passwd"), "'link' is a link"),
    (member("hard", tarfile.LNKTYPE, linkname="config.json"), "'hard' is a hard link"),
    (member("null", tarfile.CHRTYPE, devmajor=1, devminor=3), "'null' is a device"),
    (member("pipe", tarfile.FIFOTYPE), "'pipe' is a device or pipe"),
    (member("/etc/passwd", content=b"x"), "'/etc/passwd' is an absolute path"),
    (member("C:/evil", content=b"x"), "'C:/evil' is an absolute path"),
    (member("voices/../../evil", content=b"x"), "leads out of its folder"),
    (member("a\\..\\evil", content=b"x"), "characters that are not allowed in a path"),
    (member("config.json:evil", content=b"x"), "cannot be a path on Windows"),
    (member("voices/con.safetensors", content=b"x"), "give 'con.safetensors' another name"),
    (member("code/nul .py", content=b"x"), "cannot be a path on Windows"),
    (member("voices./anna", content=b"x"), "cannot be a path on Windows"),
    (member("what?", content=b"x"), "cannot be a path on Windows"),
    (member("config.json", content=b"x"), "'config.json' occurs twice"),
    (member("CONFIG.JSON", content=b"x"), "differ only in case"),
    (member("config.json/evil", content=b"x"), "'config.json' is both a file and the folder of"),
    (member("folder", tarfile.DIRTYPE), "'folder' is a folder"),
    (member(".", tarfile.DIRTYPE), r"the names in the archive begin with './' \('\.'\), as `tar -czf model.tar.gz \.`"),
    (member("./config.json", content=b"x"), "begin with './' .'./config.json'., .* `s1-mini package --output"),
    (member("more.txt", content=b"x"), "'more.txt' is not listed"),
]


@pytest.mark.parametrize(("evil", "told"), EVIL)
def test_an_archive_with_forbidden_members_is_refused_by_name_and_not_unpacked(
    archive: Path, tmp_path: Path, evil: tuple[tarfile.TarInfo, bytes], told: str
) -> None:
    with tarfile.open(archive) as whole, tarfile.open(tmp_path / "evil.tar.gz", "w:gz", compresslevel=0) as tar:
        for info in whole:
            tar.addfile(info, whole.extractfile(info))
        tar.addfile(evil[0], io.BytesIO(evil[1]))

    with pytest.raises(PackageError, match=told):
        unpack_archive(tmp_path / "evil.tar.gz", tmp_path / "model")

    assert [path.name for path in tmp_path.iterdir()] == ["evil.tar.gz"]


def test_an_archive_that_is_truncated_or_invalid_is_reported(archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.tar.gz").write_text("no archive")

    for name in ("cut.tar.gz", "text.tar.gz"):
        with pytest.raises(PackageError, match=name):
            verify_archive(tmp_path / name)
    with pytest.raises(PackageError, match="missing"):
        verify_archive(tmp_path / "nowhere.tar.gz")


def test_a_manifest_that_was_edited_contradicts_itself() -> None:
    manifest = Manifest("1", "2", {"a": Content("0" * 64, 1)})
    edited = manifest.to_bytes().replace(b'"bytes": 1', b'"bytes": 2')

    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    with pytest.raises(PackageError, match="contradicts itself"):
        Manifest.from_bytes(edited)
