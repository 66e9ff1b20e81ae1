"""The pictures of a mel model's figures can be drawn again from the figures that are kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmark.command import run
from benchmark.mel_plots import main

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"


@pytest.mark.parametrize("name", ["mel_cpu"])
def test_a_small_picture_is_drawn_of_figures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="draws the plots: pip install -r requirements-test.txt")
    pictures = [tmp_path / f"{number}.svg" for number in range(2)]

    for picture in pictures:
        monkeypatch.setattr(sys, "argv", ["mel_plots", str(BENCHMARKS / f"{name}.json"), str(picture)])
        assert run(main) == 0

    first, second = (picture.read_bytes() for picture in pictures)
    assert first == second
    assert len(first) < 40_000
    for words in (b"One request", b"Requests at once", b"decode_mel", b"as derived"):
        assert words in first
