"""The HTTP load test counts only the audio that its clients received."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmark.http_load import Place, Traffic, run_load

SECOND = bytes(88_200)  # of PCM


class _Server(BaseHTTPRequestHandler):
    """Refuses requests, or answers at once with two seconds of audio in chunks."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.server.refuses:  # type: ignore[attr-defined]
            self.send_error(429)
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in (SECOND, SECOND, b""):
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving(*, refuses: bool) -> Iterator[Place]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        server.refuses = refuses  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield Place.of(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_a_refused_request_counts_no_audio_and_its_client_waits() -> None:
    with serving(refuses=True) as place:
        output = run_load(Traffic(place, streams=3, seconds=0.5, rate=None, frames=10, listens=True), clients=2)

    assert (output["failed"], output["requests"], output["sound_s_a_second"]) == (3, 0, 0.0)


def test_clients_count_received_audio_and_play_it_before_the_next_request() -> None:
    with serving(refuses=False) as place:
        output = run_load(Traffic(place, streams=3, seconds=1.0, rate=None, frames=10, listens=True), clients=2)

    assert (output["failed"], output["requests"], output["ran_dry"]) == (0, 3, 0)
    assert output["sound_s_a_second"] == pytest.approx(6.0, abs=0.1)
    assert output["first_ms_p95"] >= output["first_ms_p50"] > 0
