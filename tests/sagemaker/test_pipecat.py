"""Pipecat's class for Deepgram on SageMaker, unchanged, speaks with the container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from container_room import running
from own_folder import path_with
from s1_mini import ProductionTTSEngine
from s1_mini.server.protocols import deepgram
from waiting import EVENTUALLY_S

pytestmark = pytest.mark.clients

PIPECAT = "pipecat-ai[deepgram]>=1.14,<2"
PROGRAM = Path(__file__).with_name("pipecat_turns.py")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with Pipecat."""
    return path_with("pipecat", tmp_path_factory.mktemp("pipecat"), PIPECAT)


@pytest.mark.parametrize("route", ["-", "invocations-bidirectional-stream"])
def test_turns_are_spoken_and_an_interruption_leaves_the_session_usable(
    path: str, route: str, small_engine: ProductionTTSEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_of = deepgram.config_of

    async def named_config(socket: Any, start: Any, voice: str | None, *arguments: Any) -> Any:
        """Sentences of at most 20 frames in the default voice: the class cannot limit them, and must name a voice."""
        assert voice == "default"
        config = await config_of(socket, start, None, *arguments)
        return config.model_copy(update={"seed": 1, "max_new_tokens": 20})

    monkeypatch.setattr(deepgram, "config_of", named_config)
    with running(small_engine, tmp_path) as container:
        command = [sys.executable, str(PROGRAM), f"ws://127.0.0.1:{container.port}", route]
        environment = os.environ | {"PYTHONPATH": path}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=EVENTUALLY_S, check=False
        )

    assert result.returncode == 0, result.stderr[-4000:]
    heard = json.loads(result.stdout.splitlines()[-1])
    assert heard["first"] == heard["second"] > 10_000
    assert 0 < heard["after"] <= heard["first"]
