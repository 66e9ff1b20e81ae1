"""The soak test depends on its seed alone, tells interrupted from lost requests, and reports a killed replica."""

from __future__ import annotations

import asyncio
import itertools
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark import honest
from benchmark.honest import Failure, Honest, Look, Outcome, Tally
from benchmark.http_load import Place
from benchmark.soak import NAMES, SCENARIOS, Episode, Played, Turn, growth, judge, main, schedule
from commands import Command
from replica_room import needs_proxy

KILL = next(scenario for scenario in SCENARIOS if scenario.name == "a replica is killed")


def turns(seed: int) -> list[Turn]:
    return list(itertools.islice(schedule(seed), 4 * len(NAMES)))


def test_the_schedule_is_reproducible_from_its_seed_and_leaves_no_scenario_out() -> None:
    names = [turn.name for turn in turns(1)]

    assert turns(1) == turns(1)
    assert turns(1) != turns(2)
    assert sorted(names) == sorted(NAMES * 4)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Failure("lost", "reset", 9.0, 10.1), []),  # under way when the replica was killed at 10
        (Failure("lost", "reset", 5.0, 9.0), ["1 lost"]),
        (Failure("lost", "reset", 13.0, 14.0), ["1 lost"]),
        (Failure("lost", "silent", 9.0, 70.0), ["1 lost"]),
        (Failure("different", "whole", 9.0, 10.1), ["1 different"]),
        (Failure("doubled", "whole", 9.0, 10.1), ["1 doubled"]),
    ],
    ids=["interrupted", "before", "after", "hanging", "different", "doubled"],
)
def test_a_scenario_explains_only_the_losses_of_requests_that_it_interrupts(failure: Failure, told: list[str]) -> None:
    tally, played = Tally(failures=[failure], whole=Counter(whole=1)), Played(0.0)
    played.episodes.append(Episode(KILL, 10.0, 10.0, 40.0))
    site, options = Namespace(replicas=2), Namespace(scenarios=[KILL.name])

    facts = judge(site, options, tally, [Look(1.0, 0.1, 200, 0.1, 1e6, 9.0)], played)

    assert facts["violations"] == told
    assert facts["interrupted"] == int(not told)


def test_a_request_from_before_sigterm_whose_answer_is_lost_in_the_drain_is_a_violation() -> None:
    late = [Failure("lost", "whole reset", began, 61.0) for began in (58.0, 59.5, 60.5)]
    tally = Tally(ended=late, whole=Counter(whole=1))

    facts = judge(
        Namespace(), Namespace(scenarios=[]), tally, [Look(1.0, 0.1, 200, 0.1, 1e6, 9.0)], Played(0.0, ended=60.0)
    )

    assert facts["violations"] == ["lost in the drain: whole reset"]


@pytest.mark.parametrize("is_over", [False, True])
def test_a_request_that_is_refused_in_the_drain_is_lost(is_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> Outcome:
        return Outcome(503)

    monkeypatch.setattr(honest, "send", refuse)
    clients = Honest(Place("127.0.0.1", 9), None, Namespace(is_set=lambda: is_over))
    asyncio.run(clients._once("whole", 1, None, Place("127.0.0.1", 9)))

    assert [each.reason for each in clients.tally.ended] == ["whole status 503"] * is_over
    assert clients.tally.refused.total() == int(not is_over)


def test_growth_counts_from_minute_ten() -> None:
    minutes = [{"minute": number, "mib": mib, "files": 80.0} for number, mib in ((1, 50.0), (11, 100.0), (30, 106.0))]

    assert growth(minutes[:2]) == []
    assert growth(minutes) == ["mib grew from 100.0 to 106.0 after minute 10"]


@needs_proxy
@pytest.mark.long
def test_a_killed_replica_interrupts_only_its_requests_and_comes_back(oracle: Path, command: Command) -> None:
    words = "--hours 0 --clients 3 --slots 4 --device cpu"
    code, lines, facts, _ = command(main, words, checkpoint=oracle, scenarios=KILL.name)

    # On a busy machine, the replica may be late.
    assert [each for each in facts["violations"] if "recovered after" not in each] == [], lines
    assert code == bool(facts["violations"])
    (row,) = facts["scenarios"]
    assert (row["scenario"], row["runs"]) == (KILL.name, 1)
    assert row["recovery_s_max"] > 0
    assert (facts["lost"], facts["doubled"], facts["different"]) == ({}, 0, 0)
    assert facts["num_whole"] > 0
    assert facts["minutes"][0]["mib"] > 50
    assert facts["minutes"][0]["files"] > 20
