"""WebSocket sessions: text arrives in pieces, and its audio is sent while more text arrives.

For every kind of client, `Session` reads messages and enforces the limits, and `TextInput` cuts the text and speaks it.
A `Protocol` in `protocols/` handles the messages of one kind of client: our own (`websocket.py`), ElevenLabs'
(`elevenlabs.py`) or Deepgram's (`deepgram.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar, get_args

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketState

from s1_mini.exceptions import S1MiniError
from s1_mini.server.bodies import check_structure, in_turn
from s1_mini.server.errors import (
    BodyError,
    BusyError,
    ClientGoneError,
    DrainingError,
    IdleError,
    describe,
    from_validation,
    row_of,
    validating,
)
from s1_mini.server.record import record_of
from s1_mini.server.schemas import SessionConfig, StartOptions
from s1_mini.server.speech import source_header
from s1_mini.server.speech_queue import AnyTrack, Listener
from s1_mini.server.state import ServerState, state_of
from s1_mini.server.text_input import TextInput
from s1_mini.server.voice_names import own_voice
from s1_mini.types import AudioFormat

Options = TypeVar("Options", bound=BaseModel)

KNOWN_S = 0.1  # to find out whether a known voice still exists; otherwise, the first text fails if it does not
POLL_S = 0.25  # interval at which a session checks its time limits, eviction and shutdown of the server


class Messages:
    """The messages of one kind of client: a model, or a union of models that differ in the values of `type`."""

    def __init__(self, kinds: Any) -> None:
        models: Sequence[type[BaseModel]] = get_args(kinds)
        self.by_type = {name: each for each in models for name in get_args(each.model_fields["type"].annotation)}
        told_apart: Any = Annotated[kinds, Field(discriminator="type")] if models else kinds
        self._adapter: TypeAdapter[Any] = TypeAdapter(told_apart)

    def parse(self, text: str) -> Any:
        """Return a message. Raises `BodyError` or `InvalidError`."""
        text = text.removeprefix("\ufeff")  # a byte order mark
        try:
            check_structure(text.encode(errors="surrogatepass"))
            return self._adapter.validate_json(text, strict=True)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            kind = self.by_type.get(str(problems[0]["loc"][0])) if problems[0]["loc"] else None
            if self.by_type:
                for each in problems:
                    each["loc"] = each["loc"][1:]  # the first part is the message's type
            raise from_validation(problems, kind.model_fields if kind else ()) from None


class Protocol(Listener[AnyTrack]):
    """Sends to one kind of client, and handles its messages."""

    messages: Messages

    def __init__(self, session: Session) -> None:
        self.session = session
        self.idle_s: float = session.state.settings.websocket_idle_s  # maximum seconds without a message or audio

    @abstractmethod
    async def act(self, message: Any) -> None:
        """Handle a message."""

    async def begin(self) -> None:
        """Greet the client."""

    async def end(self) -> None:
        """Announce that everything was spoken. Raises `S1MiniError`."""

    def error(self, description: dict[str, Any], close_code: int) -> dict[str, Any]:  # noqa: ARG002
        """Return the message for an error that ends the session."""
        return {"type": "error"} | description


def read_options(socket: WebSocket, model: type[Options]) -> Options:
    """Return the query parameters of a client. Raises `InvalidError`."""
    with validating():
        return model.model_validate(dict(socket.query_params))


async def config_of(
    state: ServerState, start: StartOptions, voice: str | None, audio_format: AudioFormat, rate: int | None
) -> SessionConfig:
    """Return the configuration of a client that chooses only these. Raises the errors of `describe_voice`."""
    name = await own_voice(state, voice)
    if name is not None:
        # SageMaker waits 250 ms for the connection, and all threads may be busy.
        limit = asyncio.timeout(KNOWN_S if state.engine.has_voice(name.lower()) else None)
        try:
            async with limit:
                await asyncio.to_thread(state.engine.describe_voice, name)
        except TimeoutError:
            if not limit.expired():
                raise
    options = start.model_dump(include=set(StartOptions.model_fields))
    return SessionConfig(type="session.config", voice=name, response_format=audio_format, sample_rate=rate, **options)


async def converse(socket: WebSocket, protocol: Callable[[Session], Protocol[Any]]) -> None:
    """Run a session with a client. Raises `BusyError`, or `ClientGoneError` if the client disconnects."""
    session, pool, record = Session(socket, protocol), state_of(socket).websockets, record_of(socket)
    if not pool.add(session, record.client):
        raise BusyError("All WebSocket sessions are in use. Retry in one second.")
    try:
        label = source_header(session.state.engine.config.label_audio)
        await socket.accept(headers=[(name.lower().encode(), value.encode()) for name, value in label.items()])
        await session.run()
    finally:
        pool.remove(session)


class Session:
    """One WebSocket session.

    A session is idle while nothing waits to be spoken. A session, usually an idle one, may be evicted to make room for
    a new one (`IdlePool`).
    """

    def __init__(self, socket: WebSocket, protocol: Callable[[Session], Protocol[Any]]) -> None:
        self._socket, self.state = socket, state_of(socket)
        self.record = record_of(socket)
        self._is_evicted = False
        self._last_message = time.monotonic()
        self.text = TextInput(self.state, self.record, lambda: self.protocol, self._mark)
        self.queue = self.text.queue
        self.protocol: Protocol[Any] = protocol(self)

    async def run(self) -> None:
        """Read messages and speak until the session ends; send errors to the client. Raises `ClientGoneError`."""
        try:
            await self.protocol.begin()
            await self.text.run(self._read())
            await self.protocol.end()
            await self._socket.close()
        except (ClientGoneError, WebSocketDisconnect):
            raise ClientGoneError from None
        except S1MiniError as error:
            await self._fail(error)
        finally:
            self.queue.forget()

    def _mark(self, is_busy: bool) -> None:
        (self.state.websockets.mark_busy if is_busy else self.state.websockets.mark_idle)(self)

    def evict(self) -> None:
        self._is_evicted = True

    async def _fail(self, error: S1MiniError) -> None:
        self.record.fail(error)
        status = row_of(error).status
        close_code = 1013 if status in (429, 503) else 1011 if status >= 500 else 1008
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.send(self.protocol.error(describe(error, self.record.id), close_code))
            await self._socket.close(close_code)

    async def _read(self) -> None:
        """Handle messages until everything is spoken."""
        ends = time.monotonic() + self.state.settings.max_websocket_s
        receiving: asyncio.Future[Any] | None = None
        finishing = asyncio.ensure_future(self.queue.is_finished.wait())
        try:
            while True:
                receiving = receiving or asyncio.ensure_future(self._socket.receive())
                await asyncio.wait({receiving, finishing}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if finishing.done():
                    return
                if receiving.done():
                    self._last_message = time.monotonic()
                self._check_limits(ends)
                if not receiving.done():
                    continue
                message, receiving = receiving.result(), None
                if message["type"] == "websocket.disconnect":
                    raise ClientGoneError
                await self._take(message)
        finally:
            finishing.cancel()
            if receiving is not None:
                receiving.cancel()

    def _check_limits(self, ends: float) -> None:
        settings, queue, now = self.state.settings, self.queue, time.monotonic()
        if now > ends:
            raise IdleError(f"the session reached its limit of {settings.max_websocket_s:g} s")
        if self._is_evicted:
            raise BusyError(
                "All sessions are in use, and a new one took the place of this session. Reconnect to continue."
            )
        if queue.is_closed:
            return
        if self.state.gate.is_draining:
            raise DrainingError("the server is shutting down; reconnect")
        is_idle = not queue or queue.waits_for_text
        if is_idle and now - max(self._last_message, queue.last_moved) > self.protocol.idle_s:
            raise IdleError(f"no message arrived for {self.protocol.idle_s:g} s")

    async def _take(self, message: dict[str, Any]) -> None:
        """Handle one message. An invalid message raises an error, or is ignored once the text is complete."""
        text = message.get("text")
        try:
            if text is None:
                raise BodyError("binary messages are not accepted; send JSON as text")
            parsed = await in_turn(self.state, self.protocol.messages.parse, text)
        except S1MiniError:
            if self.queue.is_closed:
                return
            raise
        await self.protocol.act(parsed)

    async def send(self, content: dict[str, Any]) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.send_text(json.dumps(content))

    async def send_bytes(self, content: bytes) -> None:
        await self._socket.send_bytes(content)
