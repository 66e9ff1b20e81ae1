"""A recording is encoded once: for all who bring it at once, again later, and after a restart."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini.voices.format import fingerprint
from s1_mini.voices.reference_cache import ReferenceCache


class Encoder:
    """Counts how often it is asked."""

    def __init__(self, codes: torch.Tensor) -> None:
        self.codes, self.calls = codes, 0

    def __call__(self) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"codes": self.codes}


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(torch.arange(40).reshape(4, 10))


def test_what_is_known_is_not_encoded_again(encoder: Encoder) -> None:
    cache = ReferenceCache(max_bytes=10_000)
    key = cache.key(b"recording")

    for _ in range(3):
        assert torch.equal(cache.get(key, encoder)["codes"], encoder.codes)

    assert encoder.calls == 1
    assert cache.stats.hits == 2


def test_a_recording_that_many_bring_at_once_is_encoded_once(encoder: Encoder) -> None:
    cache = ReferenceCache(max_bytes=10_000)
    gate, heard = threading.Event(), []

    def slow() -> dict[str, torch.Tensor]:
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


def test_an_encoding_that_fails_fails_for_all_who_wait_and_may_be_tried_again(encoder: Encoder) -> None:
    cache = ReferenceCache(max_bytes=10_000)

    def broken() -> dict[str, torch.Tensor]:
        raise ValueError("no sound")

    with pytest.raises(ValueError, match="no sound"):
        cache.get("key", broken)

    assert torch.equal(cache.get("key", encoder)["codes"], encoder.codes)


def test_keys_tell_recordings_apart() -> None:
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
