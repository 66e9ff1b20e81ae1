"""Added voices in a directory: opened on demand, written atomically, tied to one codec, shared between processes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from safetensors.torch import save_file

from s1_mini.audio.reference import read_recording
from s1_mini.exceptions import (
    ConfigurationError,
    ReferenceAudioError,
    StorageError,
    VoiceExistsError,
    VoiceFileError,
)
from s1_mini.voices import format as form
from s1_mini.voices.library import CheckpointVoices, NamedVoice, write_voice
from s1_mini.voices.registry import VoiceDirectory, VoiceRegistry
from tests.voices.conftest import make_voice
from voice_formats import BOOKS, voice_format


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Voice files that are opened."""
    files: list[Path] = []
    original = form.open_regular

    def count(path: Path) -> BinaryIO:
        files.append(path)
        return original(path)

    monkeypatch.setattr(form, "open_regular", count)
    return files


def roster(directory: VoiceDirectory) -> VoiceRegistry:
    return VoiceRegistry(CheckpointVoices(Path(), {}, voice_format(), {}), directory)


def test_two_thousand_voices_are_listed_without_opening_one(folder: Path, opened: list[Path]) -> None:
    content = write_voice(folder, "v0", make_voice(), encoder="codec").read_bytes()
    for index in range(1, 2000):
        (folder / f"v{index}.safetensors").write_bytes(content)

    directory = VoiceDirectory(folder, voice_format("codec"))

    assert len(directory.names) == 2000
    assert opened == []
    assert directory.get("v7") is directory.get("v7")
    assert opened == [folder / "v7.safetensors"]


def test_a_voice_is_read_as_it_was_added(folder: Path) -> None:
    VoiceDirectory(folder, voice_format("codec")).put(NamedVoice("mia", make_voice(), "a description"), replace=False)

    mia = VoiceDirectory(folder, voice_format("codec")).get("mia")

    assert mia is not None
    assert torch.equal(mia.voice.tensors["codes"], make_voice().tensors["codes"])
    assert (mia.voice.text, mia.description, mia.encoder) == ("Made up.", "a description", "codec")


def test_a_voice_of_another_codec_is_refused_by_name(folder: Path) -> None:
    VoiceDirectory(folder, voice_format("one")).put(NamedVoice("mia", make_voice()), replace=False)
    write_voice(folder, "unsigned", make_voice())
    other = VoiceDirectory(folder, voice_format("two"))

    with pytest.raises(
        VoiceFileError, match="'mia' was encoded by the codec one, but this checkpoint has the codec two"
    ):
        other.get("mia")
    with pytest.raises(VoiceFileError, match="'unsigned' was encoded by an unknown codec"):
        other.get("unsigned")


def into_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BROKEN = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "foreign": lambda path: path.write_bytes(b"no voice"),
    "empty": lambda path: path.write_bytes(b""),
    "other tensors": lambda path: save_file({"weights": torch.zeros(3)}, path),
    "no integers": lambda path: save_file({"codes": torch.zeros(BOOKS, 3)}, path, metadata={"codec": "codec"}),
    "no frames": lambda path: save_file({"codes": torch.zeros(BOOKS, 0, dtype=torch.int16)}, path),
    "too large": lambda path: os.truncate(path, form.MAX_FILE_BYTES + 1),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}
if hasattr(os, "mkfifo"):
    BROKEN["a FIFO"] = into_fifo


@pytest.mark.parametrize("damage", BROKEN)
def test_a_file_that_is_not_a_voice_is_named_in_an_error_and_affects_no_other(damage: str, folder: Path) -> None:
    directory = VoiceDirectory(folder, voice_format("codec"))
    for name in ("good", "bad"):
        directory.put(NamedVoice(name, make_voice()), replace=False)
    BROKEN[damage](folder / "bad.safetensors")

    with pytest.raises(VoiceFileError, match=r"'bad' cannot be used: bad\.safetensors is not a valid voice file"):
        directory.get("bad")
    assert directory.get("good") is not None


def test_listing_omits_files_that_are_not_voices_and_warns_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = VoiceDirectory(folder, voice_format("codec"))
    directory.put(NamedVoice("good", make_voice()), replace=False)
    (folder / "bad.safetensors").write_bytes(b"no voice")
    (folder / "No Name.safetensors").write_bytes(b"")
    (folder / ".bad-x.tmp").write_bytes(b"left over")
    with caplog.at_level(logging.WARNING):
        lists = [[info.name for info in shown.infos()] for shown in [roster(directory)] * 2]

    assert lists == [["good"], ["good"]]
    assert sorted(record.message.split()[0] for record in caplog.records) == ["ignoring", "skipping"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFOs in folders")
def test_fifos_and_broken_links_among_recordings_are_reported_and_never_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.wav")
    (folder / "gone.wav").symlink_to(folder / "nowhere")
    (folder / "loop.wav").symlink_to(folder / "loop.wav")

    found = VoiceDirectory(folder, voice_format("codec")).recordings()

    assert [recording.name for recording in found] == ["gone", "loop", "pipe"]
    for recording in found:
        with pytest.raises(ReferenceAudioError, match="cannot be read"):
            read_recording(recording.audio, 1000)


def test_changes_by_another_process_are_seen(folder: Path) -> None:
    mine, theirs = VoiceDirectory(folder, voice_format("codec")), VoiceDirectory(folder, voice_format("codec"))

    theirs.put(NamedVoice("mia", make_voice(1)), replace=False)
    first = mine.get("mia")
    theirs.put(NamedVoice("mia", make_voice(2)), replace=True)
    second = mine.get("mia")
    theirs.remove("mia")

    assert first is not None
    assert second is not None
    assert torch.equal(first.voice.tensors["codes"], make_voice(1).tensors["codes"])
    assert torch.equal(second.voice.tensors["codes"], make_voice(2).tensors["codes"])
    assert mine.get("mia") is None


def test_a_voice_that_another_process_changes_while_it_is_read_is_missing_or_new(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = VoiceDirectory(folder, voice_format("codec")), VoiceDirectory(folder, voice_format("codec"))
    replacements = [make_voice(2), None]
    original = form.open_regular

    def change_first(path: Path) -> BinaryIO:
        if replacements:
            theirs.remove("mia")
            if (voice := replacements.pop()) is not None:
                opened = original(path.parent / "other.safetensors")
                theirs.put(NamedVoice("mia", voice), replace=False)
                return opened
        return original(path)

    (folder / "other.safetensors").write_bytes(b"half of a file")
    monkeypatch.setattr(form, "open_regular", change_first)
    theirs.put(NamedVoice("mia", make_voice(1)), replace=False)
    deleted = mine.get("mia")
    theirs.put(NamedVoice("mia", make_voice(1)), replace=False)
    replaced = mine.get("mia")

    assert deleted is None
    assert replaced is not None
    assert torch.equal(replaced.voice.tensors["codes"], make_voice(2).tensors["codes"])


def test_of_many_concurrent_writers_of_a_name_one_wins(folder: Path) -> None:
    directories = [VoiceDirectory(folder, voice_format("codec")) for _ in range(8)]
    outcomes: list[str] = []

    def put(index: int) -> None:
        try:
            directories[index].put(NamedVoice("mia", make_voice(index)), replace=False)
            outcomes.append(f"put {index}")
        except VoiceExistsError:
            outcomes.append("exists")

    threads = [threading.Thread(target=put, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    winner = next(outcome for outcome in outcomes if outcome != "exists")
    kept = VoiceDirectory(folder, voice_format("codec")).get("mia")
    assert outcomes.count("exists") == 7
    assert kept is not None
    assert torch.equal(kept.voice.tensors["codes"], make_voice(int(winner.split()[1])).tensors["codes"])
    assert [path.name for path in folder.iterdir()] == ["mia.safetensors"]


def test_a_write_that_fails_leaves_the_old_voice_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = VoiceDirectory(folder, voice_format("codec"))
    directory.put(NamedVoice("mia", make_voice(1)), replace=False)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="'mia' cannot be written: No space left"):
        directory.put(NamedVoice("mia", make_voice(2)), replace=True)

    kept = VoiceDirectory(folder, voice_format("codec")).get("mia")
    assert kept is not None
    assert torch.equal(kept.voice.tensors["codes"], make_voice(1).tensors["codes"])
    assert [path.name for path in folder.iterdir()] == ["mia.safetensors"]


def test_an_invalid_directory_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match=r"voices_path=.*; name a folder that this user can"):
        VoiceDirectory(tmp_path / "file", voice_format("codec"))


def test_no_name_leads_out_of_the_directory(folder: Path) -> None:
    write_voice(folder.parent, "outside", make_voice(), encoder="codec")
    directory = VoiceDirectory(folder, voice_format("codec"))

    for name in ("../outside", str(folder.parent / "outside"), "..", "con", "", 7, None):
        assert directory.get(name) is None
        assert directory.summary(name) is None
