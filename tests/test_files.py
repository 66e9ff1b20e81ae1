"""Files are renamed and deleted reliably, also on Windows while another process has them open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from s1_mini.files import WAITS_S, Files, name_of_open, open_regular


class Held:
    """A file that other processes hold open for a while; `Files.sleep` advances the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, refusals: int) -> None:
        self.waited: list[float] = []
        self.refusals = refusals
        real = getattr(Path, method)

        def refuse(path: Path, *arguments: object) -> object:
            if self.refusals:
                self.refusals -= 1
                raise PermissionError(13, "The process cannot access the file because it is being used")
            return real(path, *arguments)

        monkeypatch.setattr(Path, method, refuse)

    def files(self, *, is_windows: bool) -> Files:
        return Files(is_windows=is_windows, sleep=self.waited.append)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "new").write_text("new", encoding="utf-8")
    (tmp_path / "old").write_text("old", encoding="utf-8")
    return tmp_path / "new", tmp_path / "old"


def test_on_windows_open_files_are_replaced_deleted_and_renamed_once_they_are_closed(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = pair
    held = Held(monkeypatch, "replace", refusals=3)

    held.files(is_windows=True).replace(new, old)
    Held(monkeypatch, "unlink", refusals=2).files(is_windows=True).remove(old)
    (new.parent / "unfinished").mkdir()
    Held(monkeypatch, "rename", refusals=1).files(is_windows=True).rename(new.parent / "unfinished", new)

    assert held.waited == list(WAITS_S[:3])
    assert not old.exists()
    assert new.is_dir()


@pytest.mark.parametrize("is_windows", [True, False])
def test_a_permission_that_stays_refused_is_an_error_after_a_second_on_windows_and_at_once_elsewhere(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, is_windows: bool
) -> None:
    new, old = pair
    held = Held(monkeypatch, "replace", refusals=1000)

    with pytest.raises(PermissionError):
        held.files(is_windows=is_windows).replace(new, old)

    assert 1 <= sum(held.waited) <= 2 if is_windows else held.waited == []
    assert old.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_is_never_written_over_another(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    new, old = pair
    if not has_links:
        monkeypatch.setattr("os.link", _refuse_links)

    with pytest.raises(FileExistsError):
        Files().rename_to_new(new, old)
    Files().rename_to_new(new, old.with_name("newer"))

    assert old.read_text(encoding="utf-8") == "old"
    assert old.with_name("newer").read_text(encoding="utf-8") == "new"


def _refuse_links(*_: object) -> None:
    raise OSError(1, "Operation not permitted")


def test_a_missing_file_is_not_waited_for(tmp_path: Path) -> None:
    def never(_: float) -> None:
        raise AssertionError

    with pytest.raises(FileNotFoundError):
        Files(is_windows=True, sleep=never).remove(tmp_path / "none")


def test_an_open_file_keeps_its_path_when_another_takes_its_name(pair: tuple[Path, Path]) -> None:
    new, old = pair
    with open_regular(old) as file:
        name = name_of_open(file)
        if name != str(old):  # Windows has no such paths, and keeps the name while the file is open
            Files().replace(new, old)

        assert Path(name).read_text(encoding="utf-8") == "old"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFOs in folders")
def test_a_fifo_or_a_folder_is_refused_without_waiting_even_if_it_takes_the_place_of_a_file_just_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")

    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)

    regular = Path(__file__).stat()
    monkeypatch.setattr("s1_mini.files.os.stat", lambda _: regular)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "fifo")


@pytest.mark.parametrize("ending", ["sys.exit()", "delete_temporary_folders(); os._exit(0)"])
def test_a_temporary_folder_is_deleted_with_the_process(tmp_path: Path, ending: str) -> None:
    program = (
        "import os, sys\n"
        "from s1_mini.files import delete_temporary_folders, temporary_folder\n"
        "folder = temporary_folder('test-')\n"
        "(folder / 'file').touch()\n"
        f"print(folder, flush=True)\n{ending}"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )

    assert Path(output.stdout.strip()).parent == tmp_path
    assert not list(tmp_path.iterdir())
