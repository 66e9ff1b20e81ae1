"""Listeners count the sound that they were given, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmark.http_load import Place, Traffic, run_load


class _Refuses(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(429)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_refusal_is_no_sound_and_its_client_waits(refusing: str) -> None:
    told = run_load(Traffic(Place.of(refusing), streams=3, seconds=0.5, rate=None, frames=10, listens=True), clients=2)

    assert (told["failed"], told["requests"], told["sound_s_a_second"]) == (3, 0, 0.0)
