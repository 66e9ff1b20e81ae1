"""Log lines: readable on a terminal, JSON elsewhere (also in test_run.py); a real process on a pseudo-terminal."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from commands import ENVIRONMENT
from s1_mini.server.logs import TextFormatter, set_up_logging
from waiting import EVENTUALLY_S, wait_until


def written(message: str, level: int = logging.INFO, **fields: object) -> str:
    record = logging.LogRecord("s1_mini.server", level, __file__, 1, message, (), None)
    record.fields = fields
    line = TextFormatter().format(record)
    assert re.match(r"\d\d:\d\d:\d\d ", line)
    return line[9:]


def test_a_request_is_one_short_line() -> None:
    asked = {"request_id": "a1", "method": "POST", "route": "/v1/tts", "status": 200, "total_ms": 1234.5}

    assert written("request", **asked, audio_s=2.345, _aws={"CloudWatchMetrics": []}) == (
        "POST /v1/tts 200 in 1.23 s, 2.3 s of audio"
    )
    assert written("request", **asked, trace_id="0af7").endswith("200 in 1.23 s, trace 0af7")
    assert written("request", logging.WARNING, **asked | {"status": 503}, code="not_ready") == (
        "warning: POST /v1/tts 503 in 1.23 s, not_ready"
    )


def test_any_other_line_has_its_message_and_its_fields() -> None:
    assert written("restored", voices=2, seconds=1.5) == "restored (voices=2, seconds=1.5)"
    assert written("engine died", logging.ERROR, event="engine_died") == "error: engine died"


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
        logging.getLogger("httpx2").info("HTTP Request: GET http://replica/health")
        logging.getLogger("s1_mini.runtime.loader").info("device: cpu")
        logging.getLogger("s1_mini.server").info("done")
    finally:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        for handler in before:
            root.addHandler(handler)
        root.setLevel(level)

    lines = capsys.readouterr().err.splitlines()
    if is_json:
        assert [json.loads(line)["message"] for line in lines] == ["device: cpu", "done"]  # nothing from uvicorn
    else:
        assert [line[9:] for line in lines] == ["done"]  # nor from the engine, on a terminal


@contextmanager
def on_a_terminal(checkpoint: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], list[str]]]]:
    """A server on a terminal, and its output so far."""
    import pty

    master, slave = pty.openpty()
    text = bytearray()

    def read() -> None:
        try:
            while part := os.read(master, 4096):
                text.extend(part)
        except OSError:  # the terminal was closed
            pass

    command = [sys.executable, "-m", "s1_mini", "serve", "--checkpoint", str(checkpoint), "--port", "0"]
    settings = ENVIRONMENT | {"S1_MINI_SERVER_HOST": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=slave, env=settings) as process:
        os.close(slave)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process, lambda: text.decode().splitlines()
        finally:
            process.kill()
            reader.join()
            os.close(master)


@pytest.mark.skipif(os.name == "nt", reason="a terminal of Linux or macOS")
def test_a_terminal_shows_one_line_for_each_event_and_no_other(tiny: Path) -> None:
    """The URL and how to stop are printed once the server is ready; health checks and page files are not logged."""
    with on_a_terminal(tiny) as (process, lines), httpx2.Client(trust_env=False, verify=False) as client:
        wait_until(lambda: any("ready at" in line for line in lines()))
        found = re.search(r"ready at (http://127\.0\.0\.1:\d+/) \(web page", lines()[-1])
        assert found, lines()
        page = client.get(found[1])
        statuses = [client.get(found[1] + path).status_code for path in ("ping", "ready", "static/page.js", "nowhere")]
        process.send_signal(signal.SIGINT)
        code = process.wait(EVENTUALLY_S)
        wait_until(lambda: any("stopping" in line for line in lines()))

    assert page.headers["content-type"].startswith("text/html")
    assert statuses == [200, 200, 200, 404]
    assert "Press Ctrl+C to stop" in lines()[1]
    assert code == 0
    output = [line[9:17] for line in lines()]
    assert sorted(output) == ["GET / 20", "GET /now", "loading ", "ready at", "stopping"]
