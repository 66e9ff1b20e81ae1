"""The server load test detects lost and duplicated responses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.server_load import Minute, Tally, facts_of, has_lost, main
from commands import Command
from plain_install import plain_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_nothing_is_lost_or_duplicated_while_half_of_the_clients_disconnect(oracle: Path, command: Command) -> None:
    code, lines, output, _ = command(main, "--streams 8 --seconds 2 --max-batch-size 4", checkpoint=oracle)

    assert code == 0, lines
    assert output["failed"] == {}
    assert output["different"] == 0
    assert output["whole"] >= 4
    assert output["vanished"] >= 4
    assert output["ping_ms_p99"] < 10_000
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


def test_a_server_that_cannot_start_is_reported_at_once(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s1_mini.py").write_text("raise SystemExit('no checkpoint')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # makes the server process exit at once

    done = command(main, "--seconds 1")

    assert done.code == 1
    assert "did not start" in done.errors


def test_a_missing_extra_is_reported(tmp_path: Path) -> None:
    plain = plain_environment(tmp_path)
    path = os.pathsep.join((plain["PYTHONPATH"], str(ROOT))) if "PYTHONPATH" in plain else str(ROOT)
    command = [sys.executable, "-m", "benchmark.server_load"]

    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=plain | {"PYTHONPATH": path}, check=False
    )

    assert done.returncode == 1, done.stderr
    assert 'pip install "s1-mini[server]"' in done.stderr
