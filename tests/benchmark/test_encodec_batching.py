"""Encodec's batching modes are measured on the same workload and reported with their agreement."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark import encodec_batching
from benchmark.encodec_batching import HISTOGRAM, WAYS, draw_lengths, main
from commands import Command


def test_the_files_have_the_lengths_of_test_clean_and_so_has_a_share_of_them() -> None:
    whole, part = draw_lengths(1.0, seed=0), draw_lengths(0.1, seed=0)

    assert len(whole) == sum(HISTOGRAM) == 2628
    assert sum(whole) / 3600 == pytest.approx(5.43, abs=0.02)
    assert 1.3 <= min(whole) < max(whole) <= 35
    assert len(part) == 263
    assert np.mean(part) == pytest.approx(np.mean(whole), rel=0.02)


@pytest.mark.long
def test_the_command_measures_all_ways_and_they_agree(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodec_batching, "SHORTEST_S", 0.1)  # otherwise the test would take half a minute
    monkeypatch.setattr(encodec_batching, "BIN_S", 0.2)

    done = command(main, "--device cpu --size tiny --share 0.003 --lanes 3 --chunk 15 --batch 4 --single-share 0.5")

    assert done.code == 0
    output = {(each["direction"], each["way"]): each for each in done.facts["ways"]}
    assert list(output) == [(direction, way) for direction in ("encode", "decode") for way in WAYS]
    for (direction, way), each in output.items():
        assert each["files"] == (4 if way == "single" else 8)
        assert 0 < each["useful"] <= 1
        assert each["allocations"] is None, "which only a GPU counts"
        if direction == "decode":
            assert each["max_difference"] <= 1e-5
        else:
            assert each["agreement"] >= 0.97  # the last frame of a padded file is padded with zeros, not mirrored
    assert output["encode", "single"]["useful"] == output["encode", "single"]["agreement"] == 1
    assert output["encode", "lanes"]["agreement"] >= 0.998
    assert output["decode", "sorted"]["useful"] > output["decode", "padded"]["useful"]
