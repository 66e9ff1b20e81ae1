"""The server load test detects lost and duplicated responses."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.server_load import Minute, Tally, facts_of, has_lost, main
from commands import Command


@pytest.mark.long
def test_nothing_is_lost_or_duplicated_while_half_of_the_clients_disconnect(oracle: Path, command: Command) -> None:
    code, lines, output, _ = command(main, "--streams 8 --seconds 2 --max-batch-size 4", checkpoint=oracle)

    assert code == 0, lines
    assert output["failed"] == {}
    assert output["different"] == 0
    assert output["whole"] >= 4
    assert output["vanished"] >= 4
    assert output["ping_ms_p99"] < 10_000
    assert 0 < output["accept_ms_p50"] <= output["accept_ms_max"]
    assert output["free_ms"] < 10_000
    assert output["minutes"][0]["mib"] > 50


@pytest.mark.parametrize("lost", ["failed", "different", "nothing heard"])
def test_lost_responses_are_reported(lost: str) -> None:
    tally = Tally(minutes=[Minute(whole=0 if lost == "nothing heard" else 2)], digests={1: {"a"}})
    if lost == "failed":
        tally.failed["IncompleteReadError"] += 1
    if lost == "different":
        tally.digests[1].add("b")

    assert has_lost(facts_of(tally, 8, 3.0))
