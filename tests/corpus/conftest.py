"""A corpus that was spoken once, without any interruption."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from corpus_room import SHORT, write_texts
from s1_mini.cli.app import run


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty texts as JSON lines."""
    return write_texts(tmp_path_factory.mktemp("texts") / "texts.jsonl")


@pytest.fixture(scope="session")
def whole(texts: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their sound in seven shards."""
    output = tmp_path_factory.mktemp("whole") / "spoken"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "argv", ["s1-mini", "corpus", *map(str, (texts, output, "--local", "--checkpoint", tiny, *SHORT))]
        )
        assert run() == 0
    return output
