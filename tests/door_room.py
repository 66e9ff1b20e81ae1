"""A real server on a real socket, in a thread of the tests' process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import uvicorn
from fastapi import FastAPI

from s1_mini import ProductionTTSEngine
from s1_mini.server.run import make_config
from waiting import EVENTUALLY_S, wait_until


@dataclass
class Door:
    """A running server."""

    port: int
    app: FastAPI
    engine: ProductionTTSEngine
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    store: Path = Path()  # of a container: inputs and answers of asynchronous requests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx2.Client:
        """Return a client without TLS, which would read the machine's certificates for 25 ms of CPU time."""
        return httpx2.Client(base_url=self.url, timeout=60, trust_env=False, verify=False)

    http = client


@contextmanager
def listening(app: FastAPI, engine: ProductionTTSEngine, *, waits: bool = True) -> Iterator[Door]:
    """Serve an application of `engine` until the block ends; wait until it accepts requests, unless told not to."""
    config = make_config(app)
    config.ws_ping_interval = None  # a test that moves the clock would time out a pong that is on its way
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
