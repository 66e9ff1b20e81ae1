"""A corpus synthesized once, without interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_room import SHORT, Local, speak, write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty texts as JSON lines."""
    return write_texts(tmp_path_factory.mktemp("texts") / "texts.jsonl")


@pytest.fixture(scope="session")
def whole(texts: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their audio in seven shards."""
    output = tmp_path_factory.mktemp("whole") / "spoken"
    with pytest.MonkeyPatch.context() as patch:
        assert speak(patch, texts, output, "--local", "--checkpoint", tiny, *SHORT) == 0
    return output


@pytest.fixture
def local(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Local:
    """Run `s1-mini corpus INPUT OUTPUT` with one engine in this process; return the exit code."""
    return lambda source, output, *words: speak(
        monkeypatch, source, output, "--local", "--checkpoint", tiny, *SHORT, *words
    )
