"""A real container on a real socket, for the tests of the AWS edge."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI

from s1_mini import ProductionTTSEngine
from s1_mini.sagemaker.app import make_container_app
from s1_mini.sagemaker.async_store import FolderStore
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.server.run import make_config
from s1_mini.server.settings import ServerSettings
from waiting import EVENTUALLY_S, wait_until

ENDPOINT = "speech-local"
SHORT: dict[str, Any] = {"text": "Good morning.", "seed": 1, "max_new_tokens": 8, "chunk_profile": "balanced"}


@dataclass
class Container:
    """A running container."""

    url: str
    app: FastAPI
    engine: ProductionTTSEngine
    store: Path

    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, trust_env=False, verify=False)


@contextmanager
def running(
    engine: ProductionTTSEngine,
    store: Path,
    container: dict[str, Any] | None = None,
    endpoint: str = ENDPOINT,
    **settings: Any,
) -> Iterator[Container]:
    """Serve `engine` until the block ends."""
    app = make_container_app(
        engine,
        ServerSettings(host="127.0.0.1", port=0, **settings),
        ContainerSettings(**(container or {})),
        endpoint=endpoint,
        store=FolderStore(store),
    )
    server = uvicorn.Server(make_config(app))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_until(lambda: server.started and app.state.gate.refusal() is None)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Container(f"http://127.0.0.1:{port}", app, engine, store)
    finally:
        server.should_exit = True
        thread.join(EVENTUALLY_S)
        assert not thread.is_alive()
