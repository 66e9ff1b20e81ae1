"""An idle engine is unloaded and loaded again by the next request; probes stay healthy meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("wyoming")

from wyoming.client import AsyncTcpClient
from wyoming.info import Describe
from wyoming.tts import Synthesize

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import encode
from tests.server.conftest import Clock, Door, serving
from waiting import wait_until

BODY = {"text": "Good morning.", "max_new_tokens": 8, "seed": 1}


def idle(door: Door, clock: Clock, seconds: float) -> None:
    """Advance the clock after all requests have ended, which is later than the last byte of their responses."""
    wait_until(lambda: door.app.state.gate.num_inside == 0)
    clock.advance(door, seconds)


def test_an_idle_engine_is_unloaded_and_the_next_requests_load_it_once(tiny: Path, clock: Clock) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=4))
    with serving(engine, unload_after_s=600) as door, door.client() as client:
        first = client.post("/v1/tts", json=BODY).content
        idle(door, clock, 300)
        assert engine.state().is_ready

        idle(door, clock, 301)
        wait_until(lambda: engine.state().status == "stopped")
        assert client.get("/ping").status_code == 200
        health = client.get("/health").json()
        assert (health["ready"], health["server"]["unloaded"], health["status"]) == (True, True, "stopped")

        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(client.post, "/v1/tts", json=BODY) for _ in range(4)]
        assert [answer.result().content for answer in answers] == [first] * 4
        assert client.get("/health").json()["server"]["unloaded"] is False


def test_an_engine_whose_added_voices_would_be_lost_stays_loaded(
    tiny: Path, tone: np.ndarray, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=1))
    with serving(engine, unload_after_s=600) as door, door.client() as client:
        recording = {"audio": encode(tone, 44_100, "wav")}
        assert client.post("/v1/voices", data={"name": "robin", "text": "Ah."}, files=recording).status_code == 201
        idle(door, clock, 601)
        wait_until(lambda: "added voices would be lost" in caplog.text)

        assert client.get("/v1/voices/robin").status_code == 200
        assert engine.state().is_ready
        assert client.delete("/v1/voices/robin").status_code == 204
        idle(door, clock, 601)
        wait_until(lambda: engine.state().status == "stopped")


def test_a_list_of_voices_loads_an_unloaded_engine(tiny: Path, clock: Clock) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=1))
    with serving(engine, unload_after_s=600) as door, door.client() as client:
        idle(door, clock, 601)
        wait_until(lambda: engine.state().status == "stopped")

        assert client.get("/v1/voices").status_code == 200
        assert engine.state().is_ready


@pytest.mark.parametrize(
    ("sent", "received"), [(Describe(), "info"), (Synthesize("Hello."), "audio-start")], ids=["describe", "synthesize"]
)
def test_a_wyoming_client_loads_an_unloaded_engine(tiny: Path, clock: Clock, sent: Any, received: str) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=1))

    async def exchange(port: int) -> str:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(sent.event())
            event = await client.read_event()
            assert event is not None
            return event.type

    with serving(engine, unload_after_s=600, wyoming_port=0) as door:
        idle(door, clock, 601)
        wait_until(lambda: engine.state().status == "stopped")

        assert asyncio.run(exchange(door.app.state.wyoming.port)) == received


def test_an_engine_that_cannot_be_loaded_again_is_an_error_of_the_request_until_it_can(
    tiny: Path, tmp_path: Path, clock: Clock
) -> None:
    checkpoint, moved = tmp_path / "here", tmp_path / "moved"
    shutil.copytree(tiny, checkpoint)
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu", max_batch_size=1))
    with serving(engine, unload_after_s=600) as door, door.client() as client:
        idle(door, clock, 601)
        wait_until(lambda: engine.state().status == "stopped")
        checkpoint.rename(moved)

        refused = client.post("/v1/tts", json=BODY)
        assert refused.status_code == 503
        assert "the engine could not be loaded again: " in refused.json()["error"]["message"]

        moved.rename(checkpoint)
        assert client.post("/v1/tts", json=BODY).status_code == 200
