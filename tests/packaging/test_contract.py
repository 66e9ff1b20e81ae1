"""`s1-mini package`, from the command line to a container that serves the artifact."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from s1_mini.cli.app import run
from s1_mini.packaging.verify import verify_directory
from s1_mini.packaging.write import lay_out, write_prefix
from s1_mini.sagemaker import contract
from s1_mini.sagemaker.contract import CTRL_BREAK, SIGTERM, StopSignal, stop


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["s1-mini", *map(str, arguments)])
    return run()


@pytest.mark.slow
def test_an_artifact_passes_the_contract_in_a_clean_process(
    oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tmp_path / "model.tar.gz"
    assert run_here(monkeypatch, "package", "--checkpoint", oracle, "-o", artifact) == 0
    monkeypatch.setenv("S1_MINI_SERVER_API_KEY", "a setting of this machine")

    code = run_here(monkeypatch, "package", "--check", artifact, "--device", "cpu")

    said = capsys.readouterr()
    steps = [line.split(":")[0].split(maxsplit=1) for line in said.out.splitlines()]
    assert code == 0, said.err
    names = ["unpack", "start", "ping", "invoke", "stream", "a caller's mistake", "batch transform", "stop"]
    assert steps == [["ok", name] for name in names]


def test_a_changed_artifact_is_refused_and_not_started(
    oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prefix(lay_out(oracle), tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")

    assert run_here(monkeypatch, "package", "--check", tmp_path / "model") == 1

    assert "'config.json' is different from manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "--output"),
        (["-o", "a.tar.gz", "--artifact", "b.tar.gz"], "use only one"),
        (["--artifact", "b.tar.gz"], "s3://bucket/prefix"),
        (["-o", "a.tar.gz", "--upload", "bucket/prefix"], "'bucket/prefix' is not a valid S3 location"),
        (["-o", "a.tar.gz", "--voices", "nowhere"], "nowhere is not a folder"),
        (["-o", "a.tar.gz", "--checkpoint", "nowhere"], "not a directory"),
        (["-o", "model"], "--output model does not end in .tar.gz; for a folder, add --layout prefix"),
        (["--check", "nowhere.tar.gz"], "nowhere.tar.gz is missing"),
        (["--check", __file__], f"{__file__} is not a .tar.gz"),
        (["-o", __file__, "--checkpoint", "nowhere", "--layout", "prefix"], f"{__file__} already exists"),
    ],
)
def test_an_impossible_request_is_refused_in_one_sentence(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run_here(monkeypatch, "package", *options) == 1

    said = capsys.readouterr().err
    assert told in said
    assert list(tmp_path.iterdir()) == []


def test_an_existing_archive_is_refused_before_the_checkpoint_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.tar.gz").touch()

    assert run_here(monkeypatch, "package", "-o", tmp_path / "model.tar.gz", "--checkpoint", "nowhere") == 1

    assert "model.tar.gz already exists; name a new file, or delete it" in capsys.readouterr().err


def test_without_a_checkpoint_the_built_in_voice_is_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_here(monkeypatch, "package", "-o", tmp_path / "model", "--layout", "prefix") == 0

    files = json.loads((tmp_path / "model" / "manifest.json").read_text())["files"]
    assert {"CARD.md", "voices/clara.safetensors", "codec.safetensors"} <= set(files)


class Process:
    """A process that exits with `code` on request, and records how it was stopped."""

    def __init__(self, code: int, refuses: bool = False) -> None:
        self.code, self.refuses = code, refuses
        self.asked: list[int] = []

    def send_signal(self, number: int) -> None:
        self.asked.append(number)
        if self.refuses:
            raise OSError("The handle is invalid")

    def wait(self, timeout: float) -> int:  # noqa: ARG002 - as it is called
        return self.code


@pytest.mark.parametrize(("ending", "number"), [(CTRL_BREAK, 1), (SIGTERM, 15)])
def test_a_container_is_stopped_with_a_signal_that_it_handles(ending: StopSignal, number: int) -> None:
    process = Process(0)

    step = stop(process, ending)

    assert process.asked == [number]
    assert step.passed
    assert f"after {ending.name}" in step.details
    assert not stop(Process(1), ending).passed, "it was ended as it stood"
    assert "run this command in a console" in stop(Process(0, refuses=True), ending).details


def test_a_folder_is_copied_where_links_are_not_allowed(
    oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(22, "A required privilege is not held by the client")

    manifest = write_prefix(lay_out(oracle), tmp_path / "model")
    monkeypatch.setattr(Path, "symlink_to", refuse)

    contract._place(tmp_path / "model", tmp_path / "base" / "model")

    assert verify_directory(tmp_path / "base" / "model") == manifest
