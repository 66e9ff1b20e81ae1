"""One real server on a real socket, around one engine with the tiny checkpoint, for all tests of this room."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.server.app import create_app
from s1_mini.server.run import make_config
from s1_mini.server.settings import ServerSettings
from waiting import EVENTUALLY_S, wait_until

# Many pieces; without a seed all of them could end early by chance.
LONG_SPEECH = {"text": "A sentence that goes on and on. " * 20, "seed": 1}


@dataclass
class Door:
    """A running server."""

    url: str
    port: int
    app: FastAPI
    engine: ProductionTTSEngine
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop

    def client(self) -> httpx2.Client:
        """Give a client of no TLS, which would read the machine's certificates for 25 ms of a processor."""
        return httpx2.Client(base_url=self.url, timeout=60, trust_env=False, verify=False)


@contextmanager
def serving(engine: ProductionTTSEngine, *, waits: bool = True, **settings: object) -> Iterator[Door]:
    """Serve `engine` until the block ends."""
    app = create_app(engine, ServerSettings(host="127.0.0.1", port=0, **settings))
    config = make_config(app)
    config.ws_ping_interval = None  # `Clock` moves the time past the timeout of a pong that is on its way
    server = uvicorn.Server(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        door = Door(f"http://127.0.0.1:{port}", port, app, engine, thread, loops[0])
        if waits:
            wait_until(lambda: app.state.gate.refusal() is None)
        yield door
    finally:
        server.should_exit = True
        thread.join(EVENTUALLY_S)
        assert not thread.is_alive()


class Clock:
    """`time.monotonic`, which a test moves forward for one server's thread, and so for its event loop, too."""

    def __init__(self) -> None:
        self._plain = time.monotonic
        self._shift_s: dict[int | None, float] = {}  # by thread

    def __call__(self) -> float:
        """Return the calling thread's time."""
        return self._plain() + self._shift_s.get(threading.get_ident(), 0.0)

    def advance(self, door: Door, seconds: float) -> None:
        """Move the time forward; on return the server has handled what arrived and what became due."""
        thread = door.thread.ident
        self._shift_s[thread] = self._shift_s.get(thread, 0.0) + seconds
        for _ in range(3):  # what is due is scheduled, called, and followed up
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), door.loop).result()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of servers that the test itself starts; their limits in seconds are longer than a machine stalls."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture(scope="session")
def small_engine(tiny: Path) -> Iterator[ProductionTTSEngine]:
    """An engine with the tiny checkpoint, which speaks noise fast."""
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=4)) as engine:
        yield engine
        engine.stop(drain=False)


@pytest.fixture(scope="session")
def door(small_engine: ProductionTTSEngine) -> Iterator[Door]:
    """The one server."""
    with serving(small_engine) as door:
        yield door


@pytest.fixture
def http(door: Door) -> Iterator[httpx2.Client]:
    """A client of the one server."""
    with door.client() as client:
        yield client
