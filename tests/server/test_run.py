"""The server process: signals, exit codes, and no lost requests. Real subprocesses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import numpy as np
import psutil
import pytest

from commands import ENVIRONMENT
from door_room import Address
from held_generation import held_environment
from s1_mini.audio.container import encode
from s1_mini.exceptions import ConfigurationError
from s1_mini.sagemaker.contract import ENDING
from tests.cli.conftest import Call
from tests.cli.conftest import call as call  # noqa: PLC0414 - a fixture of these tests, too
from tests.server.conftest import LONG_SPEECH
from waiting import EVENTUALLY_S, has_ended, wait_until

LONG = LONG_SPEECH | {"format": "pcm"}


class Running(Address):
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port, self.lines = process, port, []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.lines
        return any('"message": "ready"' in line for line in self.lines)

    def end(self) -> int:
        code = self.process.wait(EVENTUALLY_S)
        self._reader.join()
        return code


HANGS = """
import atexit, sys, threading
from s1_mini.cli.app import run
from s1_mini.families.codec_lm.stage import LanguageModel

wait, begin = threading.Event().wait, LanguageModel.begin
LanguageModel.begin = lambda stage, begins: begin(stage, begins) if begins[0].steps <= 2 else wait()  # the warm-up
atexit.register(wait)  # as the driver of a GPU that hangs may do
sys.exit(run())
"""

NEVER_STARTS = """
import os, sys
from s1_mini.cli.app import run
from s1_mini.remote import engine_process

if os.environ["S1_MINI_SERVER_ENGINE_PROCESS"] == "off":
    import s1_mini.engine, threading
    s1_mini.engine.ProductionTTSEngine.start = lambda _: threading.Event().wait()
head, worker, _ = engine_process.CHILD.partition("from s1_mini.remote.engine_worker")  # which imports torch
assert worker
engine_process.CHILD = head + "import threading; threading.Event().wait()"
sys.exit(run())
"""

STARTS_ONCE = """
import sys, threading
from s1_mini import ProductionTTSEngine
from s1_mini.cli.app import run

def start(engine, start=ProductionTTSEngine.start, before=[]):
    if before:
        print("starts again", file=sys.stderr, flush=True)
        threading.Event().wait()
    before.append(engine)
    start(engine)

ProductionTTSEngine.start = start
sys.exit(run())
"""

FROZEN = """
import gc, json, sys
from s1_mini.cli.app import run

def freeze_and_tell(freeze=gc.freeze):
    freeze()
    print(json.dumps({"frozen": gc.get_freeze_count()}), file=sys.stderr, flush=True)

gc.freeze = freeze_and_tell
sys.exit(run())
"""


@contextmanager
def served(checkpoint: Path, *program: str, options: tuple[str, ...] = (), **environment: str) -> Iterator[Running]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = program or ("-m", "s1_mini")
    command = [sys.executable, *program, "serve", "--port", str(port), "--checkpoint", str(checkpoint), *options]
    settings = ENVIRONMENT | {"S1_MINI_SERVER_HOST": "127.0.0.1", "OMP_NUM_THREADS": "1"} | environment
    flags = ENDING.creation_flags
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings, creationflags=flags) as process:
        running = Running(process, port)
        try:
            yield running
        finally:
            process.kill()
            running.end()


@contextmanager
def held(tiny: Path, folder: Path, *program: str, **environment: str) -> Iterator[tuple[Running, Path]]:
    """A ready server whose generation waits after the first audio, until the returned file is deleted."""
    file = folder / "held"
    with served(tiny, *program, **held_environment(file), **environment) as running:
        wait_until(running.is_ready)
        file.touch()
        yield running, file


def speak_many(running: Running, count: int, **fields: object) -> tuple[list[threading.Thread], list[object]]:
    results: list[object] = []

    def speak() -> None:
        try:
            with running.client() as client:
                answer = client.post("/v1/tts", json=LONG | fields)
                results.append((answer.status_code, len(answer.content)))
        except httpx2.TransportError as error:
            results.append(error)

    threads = [threading.Thread(target=speak) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def inside(running: Running) -> int:
    with running.client() as client:
        return client.get("/health").json()["server"]["requests"]


def test_sigterm_under_load_finishes_accepted_requests_and_refuses_new_ones(tiny: Path, tmp_path: Path) -> None:
    """Loaded objects are frozen, so that the garbage collector does not scan them."""
    with held(tiny, tmp_path, "-c", FROZEN) as (running, file):
        wait_until(lambda: any("frozen" in line for line in running.lines))
        threads, results = speak_many(running, 6, max_new_tokens=8)
        wait_until(lambda: inside(running) == 6)

        running.process.send_signal(ENDING.signal)
        with running.client() as client:
            wait_until(lambda: client.get("/ping").status_code == 503)
            late = [client.get("/ping"), client.get("/ready"), client.post("/v1/tts", json=LONG)]
        file.unlink()
        code = running.end()
        for thread in threads:
            thread.join()

    assert code == 0
    assert [answer.status_code for answer in late] == [503] * 3
    assert late[2].json()["error"]["code"] == "shutting_down"
    assert len(results) == 6
    assert {status for status, _ in results} == {200}
    assert len({length for _, length in results}) == 1
    lines = [json.loads(line) for line in running.lines]
    assert len([line for line in lines if line.get("message") == "request" and line["status"] == 200]) >= 6
    assert [line["frozen"] > 50_000 for line in lines if "frozen" in line] == [True]


def test_a_signal_ends_a_server_whose_engine_is_still_starting_with_all_its_processes(tiny: Path) -> None:
    settings = {"S1_MINI_SERVER_ENGINE_PROCESS": "on", "S1_MINI_SERVER_DRAIN_TIMEOUT_S": "3600"}
    with served(tiny, "-c", NEVER_STARTS, **settings) as running:
        wait_until(lambda: any('"listening"' in line for line in running.lines))
        server = psutil.Process(running.process.pid)
        wait_until(lambda: len(server.children()) == 1)
        children = server.children()
        running.process.send_signal(ENDING.signal)
        code = running.end()

    assert code == 0
    wait_until(lambda: all(map(has_ended, children)))


def test_signals_end_a_server_whose_engine_is_still_starting_however_many_there_are(tiny: Path) -> None:
    def has_ended_by_signals() -> bool:
        with suppress(OSError):  # on Windows, if the process has just ended
            running.process.send_signal(ENDING.signal)
        return running.process.poll() is not None

    settings = {"S1_MINI_SERVER_ENGINE_PROCESS": "off", "S1_MINI_SERVER_DRAIN_TIMEOUT_S": "3600"}
    with served(tiny, "-c", NEVER_STARTS, **settings) as running:
        wait_until(lambda: any('"listening"' in line for line in running.lines))
        wait_until(has_ended_by_signals)

        assert running.end() == 0


@pytest.mark.long
def test_a_signal_ends_a_server_whose_engine_is_loaded_again(tiny: Path) -> None:
    settings = {"S1_MINI_SERVER_ENGINE_PROCESS": "off", "S1_MINI_SERVER_DRAIN_TIMEOUT_S": "3600"}
    with served(tiny, "-c", STARTS_ONCE, S1_MINI_SERVER_UNLOAD_AFTER_S="0.1", **settings) as running:
        wait_until(lambda: any('"unloading"' in line for line in running.lines))
        threads, results = speak_many(running, 1)
        wait_until(lambda: any("starts again" in line for line in running.lines))
        running.process.send_signal(ENDING.signal)
        code = running.end()
        for thread in threads:
            thread.join()

    assert code == 0
    assert [isinstance(each, httpx2.TransportError) for each in results] == [True]


def test_requests_that_do_not_finish_in_time_get_an_error(tiny: Path, tmp_path: Path) -> None:
    """Its logs are JSON, and warn that clients of other hosts could connect without a key."""
    settings = {"S1_MINI_SERVER_DRAIN_TIMEOUT_S": "5", "S1_MINI_SERVER_HOST": "127.1"}  # 127.0.0.1, under another name
    with held(tiny, tmp_path, **settings) as (running, _), running.client() as client:
        threads, results = speak_many(running, 2)
        with client.stream("POST", "/v1/tts", json=LONG | {"stream": True}) as stream:
            wait_until(lambda: inside(running) == 3)
            running.process.send_signal(ENDING.signal)
            with pytest.raises(httpx2.RemoteProtocolError):
                stream.read()
        code = running.end()
        for thread in threads:
            thread.join()

    assert code == 0
    assert [status for status, _ in results] == [503, 503]
    lines = [json.loads(line) for line in running.lines]
    started = [line for line in lines if line.get("event") in ("loading", "listening", "ready")]
    assert [line["event"] for line in started] == ["loading", "listening", "ready"]
    assert started[-1]["url"] == f"http://127.1:{running.port}/"
    assert not [line for line in lines if line["logger"].startswith("uvicorn")]
    assert ["S1_MINI_SERVER_API_KEY" in line["message"] for line in lines if line["level"] == "warning"][:1] == [True]


@pytest.mark.long
def test_stored_voices_survive_a_kill_during_storing(tiny: Path, tmp_path: Path, tone: np.ndarray) -> None:
    """Voices whose storage was confirmed survive a `kill -9` and sound the same; no other voice is half-written."""
    kept = {"S1_MINI_VOICES_PATH": str(tmp_path / "voices"), "S1_MINI_REFERENCE_CACHE_PATH": str(tmp_path / "cache")}
    asked = {"text": "Good morning.", "seed": 1, "max_new_tokens": 4, "format": "pcm"}
    recording = encode(tone[: len(tone) // 2], 44_100, "wav")
    output: list[str] = []

    def add(running: Running, first: str) -> None:
        with suppress(httpx2.TransportError), running.client() as client:
            for number in range(1000):
                form = {"name": f"{first}{number}", "text": "Ah." * (1 + number % 5)}
                assert client.post("/v1/voices", data=form, files={"audio": recording}).status_code == 201
                output.append(form["name"])

    with served(tiny, **kept) as running:
        wait_until(running.is_ready)
        adders = [threading.Thread(target=add, args=(running, first)) for first in "abc"]
        for adder in adders:
            adder.start()
        wait_until(lambda: len(output) >= 6)
        with running.client() as client:
            before = client.post("/v1/tts", json=asked | {"voice": output[0]}).content
        running.process.kill()
        for adder in adders:
            adder.join()
        running.end()

    with served(tiny, **kept) as running:
        wait_until(running.is_ready)
        with running.client() as client:
            listed = [voice["name"] for voice in client.get("/v1/voices").json()["voices"]]
            spoken = [client.post("/v1/tts", json=asked | {"voice": name}) for name in listed]
        lines = [json.loads(line) for line in running.lines]
        warned = [line for line in lines if line["level"] != "info" and line["message"] != "request"]

    assert set(output) <= set(listed)
    assert len(set(listed) - set(output)) <= 3
    assert {answer.status_code for answer in spoken} == {200}
    assert spoken[listed.index(output[0])].content == before
    assert warned == []


def test_a_hanging_engine_fails_all_requests_and_exits_with_1(tiny: Path) -> None:
    with served(tiny, "-c", HANGS, S1_MINI_STUCK_AFTER_S="1") as running:
        wait_until(running.is_ready)
        threads, results = speak_many(running, 4)
        for thread in threads:
            thread.join()
        code = running.end()

    assert code == 1
    assert [status for status, _ in results] == [503] * 4  # type: ignore[misc]
    assert any("has been stuck" in line for line in running.lines)


def test_the_default_folder_of_asynchronous_responses_is_created_for_a_valid_name_and_removed_if_empty(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Path] = []

    def stop(*_: object, **__: object) -> None:
        created.extend(tmp_path.iterdir())
        raise ConfigurationError("stopped")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("s1_mini.remote.engine_process.make_engine", stop)

    refused = call("serve", "--port", "0", "--local-endpoint", "my endpoint")
    stopped = call("serve", "--port", "0", "--local-endpoint", "speech")

    assert "endpoint name 'my endpoint' is not valid" in refused.err
    assert "stopped" in stopped.err
    assert [path.name.startswith("s1-mini-async-") for path in created] == [True]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("host", "max_body_bytes", "sentence"),
    [
        ("127.0.0.1", "5000", "port PORT is taken; choose another with `--port`"),
        ("nonsense.invalid", "5000", "host 'nonsense.invalid' cannot be resolved; choose another with `--host`"),
        ("192.0.2.1", "5000", "host '192.0.2.1' is not an address of this machine; choose another with `--host`"),
        ("localhost", "5000", "checkpoint nowhere is not a directory; a name on the Hugging Face hub is OWNER/NAME."),
        ("localhost", "much", "S1_MINI_SERVER_MAX_BODY_BYTES='much': "),
    ],
)
def test_invalid_settings_are_reported_before_loading_or_listening(
    call: Call, host: str, max_body_bytes: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, because importing everything takes a second."""
    monkeypatch.setenv("S1_MINI_CHECKPOINT_PATH", "nowhere")
    monkeypatch.setenv("S1_MINI_SERVER_MAX_BODY_BYTES", max_body_bytes)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = 0 if host == "localhost" else taken.getsockname()[1]
        code, _, output = call("serve", "--host", host, "--port", str(port))

    assert code == 1
    assert output.startswith(f"s1-mini: {sentence.replace('PORT', str(port))}")
    assert "{" not in output
