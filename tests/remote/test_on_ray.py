"""The cascade's stages as Ray Serve deployments match one engine, even when a process is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from own_folder import RAY_GAVE_UP, path_with
from s1_mini import EngineConfig, ProductionTTSEngine
from waiting import EVENTUALLY_S, wait_until

SETTINGS = {"device": "cpu", "chunk_length": 50}
TEXTS = [f"Number {i} is said here, and then more of it. " * 4 for i in range(4)]
CONFIG = """
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
  - name: s1-mini
    route_prefix: /
    import_path: s1_mini.cluster:app
    args: {{checkpoint_path: {checkpoint}, replicas: "coarse=2", device: cpu, chunk_length: 50}}
"""

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(sys.platform != "linux", reason="Ray's own processes are looked after by Linux alone"),
]


class Served:
    """The application as subprocesses."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url, self.process, self.log = url, process, log

    def get(self, path: str) -> Any:
        """Return the response of a path; None without a server."""
        try:
            answer = httpx2.get(self.url + path, timeout=30)
        except httpx2.TransportError:
            return None
        return answer.json() if answer.status_code == 200 and answer.content else answer.status_code

    def say(self, number: int, told: Future[None] | None = None) -> np.ndarray:
        """Stream a text, and resolve `told` at its first audio."""
        asked = {"text": TEXTS[number], "seed": number, "voice": "two", "max_new_tokens": 64}
        content = b""
        with httpx2.stream(
            "POST", f"{self.url}/v1/tts", json=asked | {"stream": True, "format": "pcm"}, timeout=EVENTUALLY_S
        ) as answer:
            assert answer.status_code == 200, answer.read()
            for part in answer.iter_raw():
                content += part
                if told is not None and not told.done():
                    told.set_result(None)
        return np.frombuffer(content, "<i2").astype(np.float32) / 32768

    def kill_one(self, stage: str) -> None:
        """Kill a replica of a stage."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_it = (folder / "cmdline").read_text().startswith(f"ray::ServeReplica:s1-mini:{stage}")
                ours = f"PORT_OF_TEST={self.url}" in (folder / "environ").read_text()
            except OSError:
                continue
            if is_it and ours:
                os.kill(int(folder.name), signal.SIGKILL)
                return
        raise AssertionError(f"no replica of {stage}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def served(cascade: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path, folder = (
        path_with("ray", tmp_path_factory.mktemp("ray"), "--requirement", "requirements-ray.txt"),
        tmp_path_factory.mktemp("served"),
    )
    port, log = free_port(), folder / "log"
    (folder / "serve.yaml").write_text(CONFIG.format(port=port, checkpoint=cascade))
    url = f"http://127.0.0.1:{port}"
    variables = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "PORT_OF_TEST": url}
    command = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()", "run", str(folder / "serve.yaml")]

    def begin() -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | variables)

    served = Served(url, begin(), log)
    try:
        for may_give_up in (True, True, True, True, False):
            wait_until(lambda: served.get("/ping") == 200 or served.process.poll() is not None, log=log)
            if served.process.poll() is None:
                break
            assert may_give_up, log.read_text()
            assert RAY_GAVE_UP in log.read_text(), log.read_text()
            served.process = begin()
        yield served
    finally:
        served.process.terminate()
        served.process.wait(EVENTUALLY_S)


@pytest.fixture(scope="module")
def expected(cascade: Path) -> list[np.ndarray]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=cascade, **SETTINGS)) as engine:
        return [
            engine.generate(text, seed=i, voice="two", max_new_tokens=64).audio.clip(-1, 1)
            for i, text in enumerate(TEXTS)
        ]


def same(wave: np.ndarray, expected: np.ndarray) -> bool:
    return wave.shape == expected.shape and bool(np.abs(wave - expected).max() < 1e-3)


def test_every_stage_has_its_replicas_and_health_counts_them(served: Served) -> None:
    ends = time.monotonic() + EVENTUALLY_S
    replicas: dict[str, int] = {}
    while replicas != {"semantic": 1, "coarse": 2, "fine": 1, "codec": 1}:
        assert time.monotonic() < ends, replicas
        stages = served.get("/health")["stages"]
        replicas = {name: stage.get("replicas", {}).get("running", 0) for name, stage in stages.items()}


@pytest.mark.parametrize("stage", ["coarse", "semantic", "codec"])
def test_streams_sound_as_from_one_engine_though_a_replica_is_killed(
    served: Served, expected: list[np.ndarray], stage: str
) -> None:
    output: Future[None] = Future()
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        saying = [pool.submit(served.say, number, output) for number in range(len(TEXTS))]
        output.result(EVENTUALLY_S)
        served.kill_one(stage)
        waves = [each.result(EVENTUALLY_S) for each in saying]

    assert [same(wave, sound) for wave, sound in zip(waves, expected, strict=True)] == [True] * len(TEXTS)
    assert f"lost a replica of stage {stage}" in served.log.read_text()


def test_an_invalid_request_is_refused_as_by_one_server(served: Served) -> None:
    answer = httpx2.post(f"{served.url}/v1/tts", json={"text": "Hello.", "top_p": 7}, timeout=EVENTUALLY_S)

    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "top_p")
