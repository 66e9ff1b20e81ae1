"""One real server on a real socket, around one engine with the tiny checkpoint, for all tests of this package."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from door_room import Door, listening
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.server.app import create_app
from s1_mini.server.settings import ServerSettings

# Several utterances; without a seed all of them could end early by chance.
LONG_SPEECH = {"text": "A sentence that goes on and on. " * 20, "seed": 1, "pauses": "off"}


def serving(engine: ProductionTTSEngine, *, waits: bool = True, **settings: object) -> AbstractContextManager[Door]:
    """Serve `engine` until the block ends."""
    return listening(create_app(engine, ServerSettings(host="127.0.0.1", port=0, **settings)), engine, waits=waits)


def limit_sentences(monkeypatch: pytest.MonkeyPatch, module: Any, **options: Any) -> None:
    """Add options, by default a seed and a limit of 20 frames, to sessions of a protocol whose clients cannot."""
    config_of, more = module.config_of, options or {"seed": 1, "max_new_tokens": 20}

    async def limited(*arguments: Any) -> Any:
        return (await config_of(*arguments)).model_copy(update=more)

    monkeypatch.setattr(module, "config_of", limited)


class Clock:
    """`time.monotonic`, which a test can advance for one server's thread and so for its event loop."""

    def __init__(self) -> None:
        self._plain = time.monotonic
        self._shift_s: dict[int | None, float] = {}  # by thread

    def __call__(self) -> float:
        """Return the calling thread's time."""
        return self._plain() + self._shift_s.get(threading.get_ident(), 0.0)

    def advance(self, door: Door, seconds: float) -> None:
        """Advance the time; on return the server has handled pending input and due timers."""
        thread = door.thread.ident
        self._shift_s[thread] = self._shift_s.get(thread, 0.0) + seconds
        for _ in range(3):  # due timers are scheduled, called, and followed up
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), door.loop).result()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of servers that the test starts itself; their limits in seconds are longer than a machine stalls."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture(scope="session")
def small_engine(tiny: Path) -> Iterator[ProductionTTSEngine]:
    """An engine with the tiny checkpoint, which generates noise quickly."""
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=4)) as engine:
        yield engine
        engine.stop(drain=False)


@pytest.fixture(scope="session")
def door(small_engine: ProductionTTSEngine) -> Iterator[Door]:
    """The shared server."""
    with serving(small_engine) as door:
        yield door


@pytest.fixture(scope="session")
def short_engine(tiny: Path) -> Iterator[ProductionTTSEngine]:
    """An engine with short slots, which end noise: for protocols that cannot limit it."""
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_columns=72)) as engine:
        yield engine


@pytest.fixture(scope="session")
def short_door(short_engine: ProductionTTSEngine) -> Iterator[Door]:
    """A shared server with short slots."""
    with serving(short_engine) as door:
        yield door


@pytest.fixture(scope="session")
def built_in() -> Iterator[Door]:
    """A server with the built-in voice."""
    with serving(ProductionTTSEngine(EngineConfig(device="cpu", max_batch_size=1, compile="true"))) as door:
        yield door


@pytest.fixture
def robin(door: Door, tone: np.ndarray) -> Iterator[str]:
    """The name of an added voice."""
    yield door.engine.add_voice("robin", tone, "Ah.").name
    door.engine.delete_voice("robin")


@pytest.fixture
def openai_client(door: Door) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(door: Door) -> Iterator[httpx2.Client]:
    """A client of the shared server."""
    with door.client() as client:
        yield client
