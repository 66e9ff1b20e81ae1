"""Files get their names and go away, also on a system that refuses while somebody looks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from s1_mini.files import WAITS_S, Files, name_of_open, open_regular


class Held:
    """A file that others hold open for a while; `Files.sleep` is the time that passes."""

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


def test_on_windows_a_file_that_somebody_reads_is_replaced_when_he_lets_go(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = pair
    held = Held(monkeypatch, "replace", refusals=3)

    held.files(is_windows=True).replace(new, old)

    assert old.read_text(encoding="utf-8") == "new"
    assert held.waited == list(WAITS_S[:3])


def test_on_windows_a_file_that_somebody_reads_is_deleted_when_he_lets_go(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, old = pair

    Held(monkeypatch, "unlink", refusals=2).files(is_windows=True).remove(old)

    assert not old.exists()


def test_who_never_lets_go_is_told_of_after_a_second_or_so(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = pair
    held = Held(monkeypatch, "replace", refusals=1000)

    with pytest.raises(PermissionError):
        held.files(is_windows=True).replace(new, old)

    assert 1 <= sum(held.waited) <= 2
    assert old.read_text(encoding="utf-8") == "old"


def test_elsewhere_no_permission_is_told_at_once(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = pair
    held = Held(monkeypatch, "replace", refusals=1)

    with pytest.raises(PermissionError):
        held.files(is_windows=False).replace(new, old)

    assert held.waited == []


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


def test_a_folder_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unfinished").mkdir()
    held = Held(monkeypatch, "rename", refusals=1)

    held.files(is_windows=True).rename(tmp_path / "unfinished", tmp_path / "whole")

    assert (tmp_path / "whole").is_dir()


def test_an_open_file_keeps_its_path_when_another_takes_its_name(pair: tuple[Path, Path]) -> None:
    new, old = pair
    with open_regular(old) as file:
        name = name_of_open(file)
        if name != str(old):  # Windows has no such paths, and keeps the name while the file is open
            Files().replace(new, old)

        assert Path(name).read_text(encoding="utf-8") == "old"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFOs in folders")
def test_a_fifo_is_refused_without_waiting_even_if_it_takes_the_place_of_a_file_just_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "fifo")

    regular = Path(__file__).stat()
    monkeypatch.setattr("s1_mini.files.os.stat", lambda _: regular)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "fifo")


def test_a_folder_is_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path)
