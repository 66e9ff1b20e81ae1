"""Encoded references: encoded once; the disk cache survives restarts, is bounded, shared, and keyed by recording."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.s1.config import describe
from s1_mini.files import files
from s1_mini.types import Voice
from s1_mini.voices import reference_cache
from s1_mini.voices.format import Tensors, fingerprint
from s1_mini.voices.reference_cache import BLOCK_BYTES, ReferenceCache, ReferenceStore
from s1_mini.weights.directory import DEFAULT_MODEL
from voice_formats import voice_format
from waiting import EVENTUALLY_S, wait_until

UNBOUNDED = 10**9
Damage = Callable[[Path], object]


def store_of(folder: Path, max_bytes: int = UNBOUNDED, encoder: str = "codec") -> ReferenceStore:
    return ReferenceStore(folder, voice_format(encoder, books=4), max_bytes)


def key(number: int) -> str:
    return f"{number:032x}"


def voice(number: int, warning: str = "") -> Voice:
    return Voice({"codes": torch.arange(40).reshape(4, 10) + number}, "", warning)


def codes(number: int) -> Tensors:
    return voice(number).tensors


def path_of(folder: Path, number: int, encoder: str = "codec") -> Path:
    return folder / encoder / f"{key(number)}.safetensors"


def kept(folder: Path) -> list[int]:
    return sorted(int(path.stem, 16) for path in folder.glob("*/*.safetensors"))


def disk_bytes(folder: Path) -> int:
    return sum(-(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES for path in folder.rglob("*") if path.is_file())


def set_times(folder: Path, *numbers: int) -> None:
    """Set these entries' timestamps to the oldest, in this order."""
    for time, number in enumerate(numbers):
        os.utime(path_of(folder, number), ns=(time, time))


def is_stored(found: Voice | None, number: int) -> bool:
    return found is not None and torch.equal(found.tensors["codes"], codes(number)["codes"])


def test_entries_are_found_after_a_restart_and_by_their_encoder_only(tmp_path: Path) -> None:
    store_of(tmp_path).write(key(1), voice(1))

    assert is_stored(store_of(tmp_path).read(key(1)), 1)
    assert store_of(tmp_path).read(key(2)) is None
    assert store_of(tmp_path, encoder="another").read(key(1)) is None
    assert load_file(path_of(tmp_path, 1))["codes"].dtype == torch.int16


def test_an_entry_keeps_the_warning_about_its_recording(tmp_path: Path) -> None:
    store_of(tmp_path).write(key(1), voice(1, warning="It is clipped."))

    found = ReferenceCache(max_bytes=10_000, store=store_of(tmp_path)).find(key(1))

    assert is_stored(found, 1)
    assert found is not None
    assert found.warning == "It is clipped."


def test_an_encoding_of_another_version_of_the_conditioning_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ReferenceCache(max_bytes=0)
    before = cache.key(b"recording")

    monkeypatch.setattr(reference_cache, "CONDITIONING", b"another")

    assert cache.key(b"recording") != before


def test_the_folder_stays_within_its_limit_and_evicts_the_least_recently_used(tmp_path: Path) -> None:
    limit = 16 * BLOCK_BYTES
    store = store_of(tmp_path, limit)
    for number in range(8):
        store.write(key(number), voice(number))
    set_times(tmp_path, *range(8))
    store.read(key(0))
    for number in range(8, 100):
        store.write(key(number), voice(number))
        os.utime(path_of(tmp_path, number), ns=(number, number))
        assert disk_bytes(tmp_path) <= limit

    assert kept(tmp_path)[0] == 0
    assert kept(tmp_path)[1:] == list(range(100 - len(kept(tmp_path)) + 1, 100))
    assert len(kept(tmp_path)) >= 12


def test_a_memory_hit_counts_as_a_use_of_the_entry_on_disk(tmp_path: Path) -> None:
    cache = ReferenceCache(max_bytes=10_000, store=store_of(tmp_path))
    cache.get(key(1), lambda: voice(1))
    set_times(tmp_path, 1)

    cache.find(key(1))

    assert path_of(tmp_path, 1).stat().st_mtime_ns > 1


def test_entries_of_former_encoders_and_unfinished_files_count_and_are_deleted_too(tmp_path: Path) -> None:
    for number in range(10):
        store_of(tmp_path, encoder="former").write(key(number), voice(number))
    (tmp_path / "former" / f".{key(3)}-a1b2.tmp").write_bytes(bytes(8 * BLOCK_BYTES))
    for path in (tmp_path / "former").iterdir():
        os.utime(path, ns=(1, 1))

    store = store_of(tmp_path, 8 * BLOCK_BYTES)
    store.write(key(77), voice(77))

    assert disk_bytes(tmp_path) <= 6 * BLOCK_BYTES
    assert is_stored(store.read(key(77)), 77)


def test_foreign_files_are_neither_counted_nor_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "codec"
    folder.mkdir()
    others = [tmp_path / "mine.safetensors", folder / "mine.safetensors", folder / "notes.txt"]
    for other in others:
        other.write_bytes(bytes(20 * BLOCK_BYTES))
    store = store_of(tmp_path, 8 * BLOCK_BYTES)
    for number in range(20):
        store.write(key(number), voice(number))

    assert all(other.exists() for other in others)
    assert is_stored(store.read(key(19)), 19)


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "foreign": lambda path: path.write_bytes(b"no tensors"),
    "another number": flip_last_bit,
    "another recording's": lambda path: path.write_bytes(path_of(path.parents[1], 2).read_bytes()),
    "unsigned": lambda path: save_file(codes(1), path),
    "other tensors": lambda path: save_file({"weights": torch.zeros(3)}, path),
    "too large": lambda path: os.truncate(path, 2**31),
    "a folder": into_folder,
}
if hasattr(os, "mkfifo"):
    DAMAGES["a FIFO"] = lambda path: (path.unlink(), os.mkfifo(path))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_does_not_hold_its_recording_is_encoded_again(damage: str, tmp_path: Path) -> None:
    for number in (1, 2):
        store_of(tmp_path).write(key(number), voice(number))
    DAMAGES[damage](path_of(tmp_path, 1))
    cache = ReferenceCache(max_bytes=10_000, store=store_of(tmp_path))

    assert cache.find(key(1)) is None
    assert is_stored(cache.get(key(1), lambda: voice(1)), 1)
    if damage != "a folder":  # which a file cannot replace
        assert is_stored(store_of(tmp_path).read(key(1)), 1)


def test_a_store_that_cannot_be_written_warns_once_and_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    cache = ReferenceCache(max_bytes=10_000, store=store_of(tmp_path))

    for number in range(3):
        assert is_stored(cache.get(key(number), lambda number=number: voice(number)), number)
    assert caplog.text.count("No space left on device") == 1
    assert list((tmp_path / "codec").iterdir()) == []


def test_an_entry_that_is_as_large_as_the_store_is_not_written(tmp_path: Path) -> None:
    store_of(tmp_path, BLOCK_BYTES).write(key(1), voice(1))

    assert kept(tmp_path) == []


def test_several_stores_share_a_folder_within_one_limit(tmp_path: Path) -> None:
    limit = 32 * BLOCK_BYTES
    wrong: list[int] = []

    def work(first: int) -> None:
        store = store_of(tmp_path, limit)  # one for each process
        for number in range(first, first + 40):
            store.write(key(number), voice(number))
            for near in (number, number - 5):
                found = store.read(key(near))
                if found is not None and not is_stored(found, near):
                    wrong.append(near)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 12, 24, 36)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert disk_bytes(tmp_path) <= limit
    assert len(kept(tmp_path)) > 16


def test_an_entry_deleted_by_another_process_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = type(files).remove

    def late(self: object, path: Path) -> None:
        path.unlink()
        remove(files, path)

    for number in range(16):
        store_of(tmp_path).write(key(number), voice(number))
    monkeypatch.setattr(type(files), "remove", late)

    store_of(tmp_path, 16 * BLOCK_BYTES).trim()

    assert len(kept(tmp_path)) == 12


def test_warming_loads_the_entries_used_last_as_far_as_memory_goes_and_leaves_their_order(tmp_path: Path) -> None:
    for number in range(9):
        store_of(tmp_path).write(key(number), voice(number))
    set_times(tmp_path, *range(9))
    size = codes(0)["codes"].nbytes
    cache = ReferenceCache(max_bytes=4 * size, store=store_of(tmp_path))

    cache.warm()

    assert cache.stats.entries == 4
    set_times(tmp_path, *range(9))
    cache.get(key(99), lambda: voice(99))  # evicts the least recently used
    for path in tmp_path.glob("*/*.safetensors"):
        path.unlink()
    assert [number for number in range(9) if cache.find(key(number)) is not None] == [6, 7, 8]


def test_warming_deletes_entries_over_a_reduced_limit(tmp_path: Path) -> None:
    for number in range(20):
        store_of(tmp_path).write(key(number), voice(number))
    set_times(tmp_path, *range(20))
    cache = ReferenceCache(max_bytes=10**6, max_entries=3, store=store_of(tmp_path, 8 * BLOCK_BYTES))

    cache.warm()

    assert kept(tmp_path) == [14, 15, 16, 17, 18, 19]
    assert cache.stats.entries == 3


# In memory


class Encoder:
    """Counts its calls."""

    def __init__(self, codes: torch.Tensor) -> None:
        self.codes, self.calls = codes, 0

    def __call__(self) -> Voice:
        self.calls += 1
        return Voice({"codes": self.codes}, "")


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(torch.arange(40).reshape(4, 10))


def test_a_known_recording_is_not_encoded_again(encoder: Encoder) -> None:
    cache = ReferenceCache(max_bytes=10_000)
    key = cache.key(b"recording")

    for _ in range(3):
        assert torch.equal(cache.get(key, encoder).tensors["codes"], encoder.codes)

    assert encoder.calls == 1
    assert cache.stats.hits == 2


def test_a_recording_that_many_bring_at_once_is_encoded_once(encoder: Encoder) -> None:
    cache = ReferenceCache(max_bytes=10_000)
    gate, heard = threading.Event(), []

    def slow() -> Voice:
        gate.wait()
        return encoder()

    threads = [threading.Thread(target=lambda: heard.append(cache.get("key", slow))) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()

    assert encoder.calls == 1
    assert len(heard) == 8


def test_a_failed_encoding_fails_for_all_waiting_callers_and_can_be_retried(encoder: Encoder) -> None:
    cache = ReferenceCache(max_bytes=10_000)

    def broken() -> Voice:
        raise ValueError("no audio")

    with pytest.raises(ValueError, match="no audio"):
        cache.get("key", broken)

    assert torch.equal(cache.get("key", encoder).tensors["codes"], encoder.codes)


def test_a_caller_that_waited_for_a_cancelled_encoding_encodes_once_itself(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, made = threading.Event(), threading.Event()

    class Slow(Future[Voice]):
        """Returns to the first caller only after the second one has encoded, or has failed."""

        def result(self, timeout: float | None = None) -> Voice:
            waits.set()
            return super().result(timeout)

        def set_exception(self, exception: BaseException | None) -> None:
            super().set_exception(exception)
            made.wait(EVENTUALLY_S)

    def cancelled() -> Voice:
        waits.wait(EVENTUALLY_S)
        raise CancelledError

    def encode_second() -> Voice:
        try:
            return cache.get("key", encoder)
        finally:
            made.set()

    cache = ReferenceCache(max_bytes=10_000)
    monkeypatch.setattr(reference_cache, "Future", Slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get, "key", cancelled)
        wait_until(lambda: cache._under_way)
        second = threads.submit(encode_second)

        assert torch.equal(second.result().tensors["codes"], encoder.codes)
        assert isinstance(first.exception(), CancelledError)
        assert encoder.calls == 1


def test_different_recordings_have_different_keys() -> None:
    cache = ReferenceCache(max_bytes=0)
    waves = [np.zeros(8, np.float32), np.zeros(8, np.float64), np.ones(8, np.float32)]

    assert len({cache.key(each) for each in (b"", b"a", *waves)}) == 5
    assert cache.key(b"wave float32 " + waves[0].tobytes()) != cache.key(waves[0])


def test_a_fingerprint_changes_with_the_codec(tmp_path: Path) -> None:
    path = tmp_path / "codec.safetensors"
    path.write_bytes(b"a" * 100)
    before = fingerprint([path])
    path.write_bytes(b"a" * 99 + b"b")

    assert fingerprint([path]) != before


def test_voices_added_to_the_built_in_model_before_its_decoder_was_trained_further_still_load() -> None:
    voice = describe(DEFAULT_MODEL).voice

    assert voice is not None
    assert voice.encoder == "5248b9b531098951"  # the hash of the codec's file at that time


def test_a_codec_may_state_the_id_of_its_codes(tmp_path: Path) -> None:
    for name in ("config.json", "codec_config.json", "codec.safetensors"):
        shutil.copyfile(DEFAULT_MODEL / name, tmp_path / name)
    config = json.loads((tmp_path / "codec_config.json").read_text())
    for stated, expected in (("own-1", "own-1"), (None, fingerprint([tmp_path / "codec.safetensors"]))):
        (tmp_path / "codec_config.json").write_text(json.dumps(config | {"encoder_id": stated}))
        voice = describe(tmp_path).voice
        assert voice is not None
        assert voice.encoder == expected
    (tmp_path / "codec_config.json").write_text(json.dumps(config | {"encoder_id": "../x"}))
    with pytest.raises(CheckpointMismatchError, match=r"encoder_id='\.\./x' must be up to 64 letters"):
        describe(tmp_path)
