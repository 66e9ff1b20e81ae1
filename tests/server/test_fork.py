"""A forked child of a process that has started an engine is refused every use of an engine, instead of hanging."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import warnings
from collections.abc import Awaitable, Callable

import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import EngineNotReadyError
from s1_mini.remote.engine_process import EngineProcess
from s1_mini.runtime import process
from s1_mini.server.app import create_app
from s1_mini.server.settings import ServerSettings
from s1_mini.types import TTSRequest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")

Attempts = dict[str, Callable[[], object]]
GIVEN = {"request": TTSRequest("Hi."), "texts": ["Hi."]}  # other arguments without a default: a text


def in_child(attempts: Attempts) -> dict[str, str]:
    """Return the message of the error that each attempt raises in a forked child; empty without one."""
    receives, sends = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn of this very fork
        pid = os.fork()
    if not pid:
        messages = {}
        for name, attempt in attempts.items():
            try:
                attempt()
                messages[name] = ""
            except EngineNotReadyError as error:
                messages[name] = str(error)
            except BaseException as error:
                messages[name] = repr(error)
        os.write(sends, json.dumps(messages).encode())
        os._exit(0)
    os.close(sends)
    with os.fdopen(receives) as pipe:
        found: dict[str, str] = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return found


def uses_of(engine: object) -> Attempts:
    """Return a call of each public method and a look at each property of an engine."""

    async def awaited(result: Awaitable[object]) -> object:
        return await result

    def use(name: str) -> None:
        member = getattr(engine, name)
        if not callable(member):
            return
        needed = [each for each in inspect.signature(member).parameters.values() if each.default is each.empty]
        needed = [each for each in needed if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        arguments = [GIVEN.get(each.name, "hello") for each in needed if each.kind is not each.KEYWORD_ONLY]
        options = {each.name: True for each in needed if each.kind is each.KEYWORD_ONLY}
        result = member(*arguments, **options)
        if inspect.isawaitable(result):
            asyncio.run(awaited(result))

    names = [name for name in dir(type(engine)) if not name.startswith("_")]
    return {name: lambda name=name: use(name) for name in names}  # type: ignore[misc]


def refused(messages: dict[str, str]) -> bool:
    return all("fork" in message and "spawn" in message for message in messages.values())


def test_every_public_method_of_an_engine_is_refused_at_once(small_engine: ProductionTTSEngine) -> None:
    messages = in_child(uses_of(small_engine))

    assert len(messages) > 20
    assert refused(messages), messages


def test_every_public_method_of_an_engine_process_is_refused_at_once(small_engine: ProductionTTSEngine) -> None:
    assert small_engine.state().is_ready

    messages = in_child(uses_of(EngineProcess(small_engine.config)))

    assert len(messages) > 10
    assert refused(messages), messages


def test_another_engine_and_an_application_are_refused_too(small_engine: ProductionTTSEngine) -> None:
    app = create_app(small_engine, ServerSettings())

    async def live() -> None:
        async with app.router.lifespan_context(app):
            pass

    attempts: Attempts = {
        "engine": lambda: ProductionTTSEngine(EngineConfig(device="cpu")).start(),
        "application": lambda: asyncio.run(live()),
        "request": app.state.gate.refusal,
    }

    assert refused(messages := in_child(attempts)), messages


def test_a_fork_before_the_first_start_may_start_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_owner", None)

    assert in_child({"claim": process.claim_process}) == {"claim": ""}
