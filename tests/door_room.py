"""A real server on a real socket, in a thread of the test process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import uvicorn
from fastapi import FastAPI

from s1_mini import ProductionTTSEngine
from s1_mini.server.run import make_config
from waiting import EVENTUALLY_S, wait_until


class Address:
    """Address of a server."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx2.Client:
        """Return a client without TLS, which would read the machine's certificates for 25 ms of CPU time."""
        return httpx2.Client(base_url=self.url, timeout=EVENTUALLY_S, trust_env=False, verify=False)

    http = client

    def connect(self) -> socket.socket:
        """Return a connection for requests that are written by hand."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=EVENTUALLY_S)


@dataclass
class Door(Address):
    """A running server."""

    port: int
    app: FastAPI
    engine: ProductionTTSEngine
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    store: Path = Path()  # container only: inputs and responses of asynchronous requests


def raw_post(body: object, *lines: str, path: str = "/v1/tts", version: str = "1.1") -> bytes:
    """Return the bytes of a request with a JSON body and additional header lines."""
    content = json.dumps(body).encode()
    head = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*head, f"Content-Length: {len(content)}", *lines, "", ""]).encode() + content


def read_all(plug: socket.socket) -> bytes:
    """Return everything until the connection is closed or reset."""
    received = b""
    with suppress(ConnectionError):
        while part := plug.recv(65_536):
            received += part
    return received


@contextmanager
def listening(app: FastAPI, engine: ProductionTTSEngine, *, waits: bool = True) -> Iterator[Door]:
    """Serve an application of `engine` until the block ends; by default, wait until it accepts requests."""
    config = make_config(app)
    config.ws_ping_interval = None  # pings would come between the frames that tests read
    server = uvicorn.Server(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        wait_until(lambda: server.started and not (waits and app.state.gate.refusal()))
        yield Door(server.servers[0].sockets[0].getsockname()[1], app, engine, thread, loops[0])
    finally:
        server.should_exit = True
        thread.join(EVENTUALLY_S)
        assert not thread.is_alive()
