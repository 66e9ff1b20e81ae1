"""The load that finds what is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from s1_mini.bench.server_load import Minute, Tally, has_lost, report
from s1_mini.cli.app import app


def test_nothing_is_lost_or_doubled_while_half_of_the_clients_vanish(oracle: Path) -> None:
    options = ["--streams", "8", "--seconds", "3", "--max-batch-size", "4", "--checkpoint", str(oracle)]

    done = CliRunner().invoke(app, ["load", *options])
    told = json.loads(done.stdout.splitlines()[-1])

    assert done.exit_code == 0, done.stdout
    assert told["failed"] == {}
    assert told["different"] == 0
    assert told["whole"] >= 4
    assert told["vanished"] >= 4
    assert told["ping_ms_p99"] < 1000
    assert told["free_ms"] < 1000
    assert told["minutes"][0]["mib"] > 50


@pytest.mark.parametrize("lost", ["failed", "different", "nothing heard"])
def test_what_is_lost_is_told(lost: str) -> None:
    tally = Tally(minutes=[Minute(whole=0 if lost == "nothing heard" else 2)], digests={1: {"a"}})
    if lost == "failed":
        tally.failed["IncompleteReadError"] += 1
    if lost == "different":
        tally.digests[1].add("b")

    assert has_lost(report(tally, 8, 3.0)[1])


def test_a_server_that_cannot_start_is_told_at_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["load", "--checkpoint", str(tmp_path), "--seconds", "1"])

    assert "does not come up" in str(done.exception)
