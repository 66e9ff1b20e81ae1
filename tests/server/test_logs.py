"""Log lines: for a person on a terminal, JSON for whoever collects them; real processes on a real terminal."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from s1_mini.server.logs import TextFormatter, set_up_logging
from tests.server.conftest import wait_until

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("S1_MINI_")}


def written(message: str, level: int = logging.INFO, **fields: object) -> str:
    record = logging.LogRecord("s1_mini.server", level, __file__, 1, message, (), None)
    record.fields = fields
    line = TextFormatter().format(record)
    assert re.match(r"\d\d:\d\d:\d\d ", line)
    return line[9:]


def test_a_request_is_one_short_line() -> None:
    asked = {"request_id": "a1", "method": "POST", "route": "/v1/tts", "status": 200, "total_ms": 1234.5}

    assert written("request", **asked, audio_s=2.345, _aws={"CloudWatchMetrics": []}) == (
        "POST /v1/tts 200 in 1.23 s, 2.3 s of sound"
    )
    assert written("request", logging.WARNING, **asked | {"status": 503}, code="not_ready") == (
        "warning: POST /v1/tts 503 in 1.23 s, not_ready"
    )


def test_another_line_tells_its_message_and_its_fields() -> None:
    assert written("draining", event="draining", requests=2) == "draining (requests=2)"
    assert written("engine died", logging.ERROR, event="engine_died") == "error: engine died"
    assert written("engine could not be started", logging.ERROR, code="x", reason="No voice.") == (
        "error: engine could not be started (code=x, reason=No voice.)"
    )


def test_a_client_cannot_steer_the_terminal() -> None:
    line = written("request", method="GET", route="/\x1b[2Jclear\nGrüße\u2028", status=404, total_ms=1.0)

    assert line == r"GET /\x1b[2Jclear\nGrüße\u2028 404 in 0.00 s"


def test_a_traceback_comes_after_its_line() -> None:
    try:
        {}["here"]
    except KeyError:
        record = logging.LogRecord("a", logging.ERROR, __file__, 1, "it broke", (), sys.exc_info())

    first, *_, last = TextFormatter().format(record).splitlines()
    assert first.endswith("error: it broke")
    assert last == "KeyError: 'here'"


@pytest.mark.parametrize(("chosen", "is_json"), [("json", True), ("text", False), ("auto", True)])
def test_the_format_may_be_chosen_and_is_json_off_a_terminal(
    chosen: str, is_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up_logging(chosen)
        logging.getLogger("uvicorn.error").info("Application startup complete.")
        logging.getLogger("s1_mini.server").info("engine started")
    finally:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        for handler in before:
            root.addHandler(handler)
        root.setLevel(level)

    lines = capsys.readouterr().err.splitlines()
    if is_json:
        assert [json.loads(line)["message"] for line in lines] == ["Application startup complete.", "engine started"]
    else:
        assert [line[9:] for line in lines] == ["engine started"]  # uvicorn's own steps are no news to a person


@contextmanager
def served(checkpoint: Path, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "s1_mini", "serve", "--checkpoint", str(checkpoint), "--port", "0"]
    settings = ENVIRONMENT | {"S1_MINI_SERVER_HOST": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=stderr, env=settings) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(os.name == "nt", reason="a terminal of Linux or macOS")
def test_on_a_terminal_a_person_reads_where_the_page_is_and_how_to_stop(oracle: Path) -> None:
    import pty

    master, slave = pty.openpty()
    text = bytearray()

    def read() -> None:
        try:
            while part := os.read(master, 4096):
                text.extend(part)
        except OSError:  # nobody writes any more
            pass

    with served(oracle, slave) as process:
        os.close(slave)
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: b"engine started" in text)
        found = re.search(r"s1-mini serves at (http://127\.0\.0\.1:\d+/), a page to speak from", text.decode())
        assert found, text.decode()
        with httpx2.Client(trust_env=False) as client:
            page = client.get(found[1])
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=30)
        reader.join()
    os.close(master)

    assert page.headers["content-type"].startswith("text/html")
    assert "Ctrl+C stops it" in text.decode()
    assert "GET / 200" in text.decode()
    assert code == 0
    assert not [line for line in text.decode().splitlines() if line.startswith("{")]


def test_piped_each_line_is_json_and_one_tells_where_it_listens(oracle: Path) -> None:
    with served(oracle, subprocess.PIPE) as process:
        assert process.stderr is not None
        lines = [json.loads(process.stderr.readline()) for _ in range(3)]
        while "listening" not in lines[-1].get("event", ""):
            lines.append(json.loads(process.stderr.readline()))

        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", lines[-1]["url"])
