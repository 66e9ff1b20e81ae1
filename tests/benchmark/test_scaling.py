"""The replica benchmark loads each number of replicas, kills one, and reports and plots the results."""

from __future__ import annotations

import inspect
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmark.http_load import Place
from benchmark.scaling import COMPILING, Server, main
from commands import Command
from replica_room import needs_proxy
from s1_mini.runtime import ahead


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_server_whose_kernels_are_compiled_in_the_background_is_waited_for(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def health(reason: str) -> dict[str, Any]:
        each = {"kernels": {"value": "torch", "reason": reason}}
        members = [{"state": "ready", "starts": 1, "health": each} for _ in range(replicas)]
        return each | ({"replicas": members} if replicas > 1 else {})

    told = iter([{}, health(f"numba is {COMPILING} the step in the background"), health("disabled")])
    server = Server(Place("127.0.0.1", 9), Namespace(poll=lambda: None), replicas)
    monkeypatch.setattr(server, "all_ready", lambda _: True)
    monkeypatch.setattr(server, "health", lambda: next(told))
    server.wait()

    assert next(told, None) is None
    assert COMPILING in inspect.getsource(ahead)


@needs_proxy
@pytest.mark.long
def test_two_replicas_are_loaded_and_one_is_lost(tiny: Path, tmp_path: Path, command: Command) -> None:
    output = tmp_path / "scaling.json"
    load = {"streams": 2, "rate": 4, "listeners": 1, "frames": 30, "seconds": 1, "ramp": 0.3, "listen": 1}

    code, _, told, _ = command(main, "--device cpu --replicas 2", checkpoint=tiny, output=output, **load)

    assert (code, told) == (0, json.loads(output.read_text(encoding="utf-8")))
    (two,) = told["outcomes"]
    assert (two["replicas"], two["listeners"], two["failed"], two["missed_pings"]) == (2, 2, 0, 0)
    assert 0 < two["lost"] <= 4
    assert min(two[name] for name in ("ready_s", "gb", "back_s")) > 0
    assert {"sound_s_a_second", "first_ms_p50", "first_ms_p95", "cores", "cores_proxy", "cores_client"} < two.keys()
