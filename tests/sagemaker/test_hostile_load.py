"""The load test's own clients accept correct answers, and detect those of a broken server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from benchmark import honest
from benchmark.honest import KINDS, SEEDS, Honest, Outcome
from benchmark.http_load import Place
from commands import ENVIRONMENT
from door_room import Door
from replica_room import ROOT, needs_proxy


@pytest.fixture
def place(container: Door) -> Place:
    return Place("127.0.0.1", int(container.url.rpartition(":")[2]))


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (lambda right: right, "whole"),
        (lambda right: right._replace(content=right.content + b"!"), "different"),
        (lambda right: right._replace(status=500), "lost"),
        (lambda right: right._replace(status=599), "doubled"),
        (lambda right: right._replace(status=429), "refused"),
        (lambda right: right._replace(status=503), "refused"),
        (lambda _: ConnectionResetError(), "lost"),
    ],
    ids=["whole", "different", "500", "doubled", "429", "503", "reset"],
)
def test_every_outcome_is_counted_correctly(
    place: Place, monkeypatch: pytest.MonkeyPatch, outcome: object, counted: str
) -> None:
    begun, over, answers = threading.Event(), threading.Event(), 0

    async def answer(_: Place, kind: str, seed: int, *, leaves: str | None = None) -> Outcome:
        nonlocal answers
        answers += 1
        right = Outcome(200, f"{kind} {seed}".encode())
        if not begun.is_set():
            return right
        if answers == len(KINDS) * SEEDS + 20:
            over.set()
        await asyncio.sleep(0)
        result = outcome(right)  # type: ignore[operator]
        if isinstance(result, Exception):
            raise result
        return result._replace(retry_after_s=0.0)

    monkeypatch.setattr(honest, "send", answer)
    tally = asyncio.run(Honest(place, begun, over).run(4))
    totals = {
        "whole": tally.num_whole,
        "different": tally.different,
        "lost": sum(tally.lost.values()),
        "doubled": tally.doubled,
        "refused": sum(tally.refused.values()),
    }

    assert totals.pop(counted) > 0
    assert set(totals.values()) == {0}


@needs_proxy
@pytest.mark.long
def test_floods_of_probes_harm_neither_replicas_nor_honest_clients() -> None:
    words = ("--probing", "--replicas=2", "--clients=20", "--seconds=30", "--undisturbed=1")
    command = [sys.executable, str(ROOT / "tests" / "hostile_load.py"), *words]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    facts = json.loads(ran.stdout.splitlines()[-1])

    assert ran.returncode == 0, facts
    assert (facts["lost"], facts["refused"], facts["different"], facts["restarts"]) == ({}, {}, 0, 0)
    assert facts["ping_failures"] == 0
    assert facts["exit_code"] == 0
