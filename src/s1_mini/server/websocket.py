"""WebSocket sessions: text arrives in pieces, and its audio is sent while more text arrives.

Client: `session.config` (optional), any number of `input.text`, `input.done`. Server, for each stretch of whole
sentences: `audio.start`, binary messages, `audio.done`; at the end `session.done`. An error is sent as `error` and ends
the session. The names are those of vLLM-Omni's speech endpoints on SageMaker.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Annotated, Any, cast

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketState

from s1_mini.audio.reference import read_recording
from s1_mini.exceptions import NothingToSpeakError, S1MiniError, TextError
from s1_mini.server.accounts import Metered, Resource
from s1_mini.server.bodies import SMALL_BYTES, check_structure, in_turn
from s1_mini.server.errors import (
    BodyError,
    BusyError,
    ClientGoneError,
    DrainingError,
    IdleError,
    code_of,
    describe,
    from_validation,
    row_of,
)
from s1_mini.server.record import record_of
from s1_mini.server.schemas import InputDone, InputText, SessionConfig, SpeechRequest, decode_base64
from s1_mini.server.speech import speak
from s1_mini.text.split import split_arriving
from s1_mini.text.tidy import is_speakable

router = APIRouter()

MAX_REST = 1000  # characters without the end of a sentence; then the text is cut at a space
SMALL_TEXT = 2000  # characters, split in the event loop; longer texts take milliseconds
POLL_S = 0.25  # how often a session looks at the clock, and whether it was evicted or the server shuts down

Input = Annotated[SessionConfig | InputText | InputDone, Field(discriminator="type")]
_INPUT: TypeAdapter[Any] = TypeAdapter(Input)
MESSAGES: dict[str, type[BaseModel]] = {
    "session.config": SessionConfig,
    "input.text": InputText,
    "input.done": InputDone,
}


@router.websocket("/v1/audio/speech/stream")
@router.websocket("/invocations-bidirectional-stream")
async def converse(socket: WebSocket) -> None:
    session, pool, record = Session(socket), socket.app.state.websockets, record_of(socket)
    if not pool.add(session, record.client):
        raise BusyError("All WebSocket sessions are in use. Retry in one second.")
    try:
        await socket.accept()
        await session.run()
    finally:
        pool.remove(session)


class Session:
    """One WebSocket session: a reader that cuts text into sentences, and a speaker that generates them in order.

    It is idle while nothing waits to be spoken; an idle session may be evicted to make room for a new one.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket, self._state = socket, socket.app.state
        self._record = record_of(socket)
        self._is_evicted = False
        self._is_finished = asyncio.Event()  # everything was spoken
        self._config = SessionConfig(type="session.config")
        self._recording: bytes | None = None
        assert self._record.holding is not None
        self._holding = self._record.holding  # the recordings of all sentences that wait, each once
        self._rest = ""
        self._stretches: asyncio.Queue[SpeechRequest | None] = asyncio.Queue()
        self._unspoken: deque[SpeechRequest] = deque()  # those in `_stretches`, and the one that is being spoken
        self._says: bool | None = None  # whether the text so far has anything to speak; None before any text
        self._num_waiting = 0  # characters in `_unspoken`
        self._num_spoken = 0
        self._unspeakable: NothingToSpeakError | None = None  # the first stretch without anything to speak
        self._warnings: list[str] = []  # of such stretches, for the next message
        self._last_moved = time.monotonic()  # a message came, or something was spoken

    async def run(self) -> None:
        """Read and speak until both have ended, or one has failed."""
        tasks = [asyncio.ensure_future(self._metered(work)) for work in (self._read(), self._speak())]
        try:
            await asyncio.gather(*tasks)
            if self._unspeakable is not None and not self._num_spoken:
                raise self._unspeakable
            await self._send({"type": "session.done", "sentences": self._num_spoken} | self._warning())
            await self._socket.close()
        except (ClientGoneError, WebSocketDisconnect):
            raise ClientGoneError from None
        except S1MiniError as error:
            await self._fail(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._forget()

    def _metered(self, work: Coroutine[Any, Any, None]) -> Metered[None]:
        return Metered(work, self._state.accounts, self._record.client)

    def _forget(self) -> None:
        """Drop the recordings now: reference cycles keep this session until the garbage collector runs."""
        self._unspoken.clear()
        self._stretches, self._recording = asyncio.Queue(), None
        self._holding.set(Resource.BODY_BYTES, 0)

    def evict(self) -> None:
        self._is_evicted = True

    async def _fail(self, error: S1MiniError) -> None:
        self._record.code = code_of(error)
        status = row_of(error).status
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._send({"type": "error"} | describe(error, self._record.id))
            await self._socket.close(1013 if status in (429, 503) else 1011 if status >= 500 else 1008)

    async def _read(self) -> None:
        """Take messages until the text is done, then wait until all of it is spoken."""
        ends, is_done = time.monotonic() + self._state.settings.max_websocket_s, False
        receiving: asyncio.Future[Any] | None = None
        finishing = asyncio.ensure_future(self._is_finished.wait())
        try:
            while True:
                receiving = receiving or asyncio.ensure_future(self._socket.receive())
                await asyncio.wait({receiving, finishing}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if finishing.done():
                    return
                if receiving.done():
                    self._last_moved = time.monotonic()
                self._check_limits(ends, is_done=is_done)
                if not receiving.done():
                    continue
                message, receiving = receiving.result(), None
                if message["type"] == "websocket.disconnect":
                    raise ClientGoneError
                is_done = is_done or await self._take(message)  # messages after input.done are ignored
                if delay_s := self._state.accounts.delay_s(self._record.client):
                    await asyncio.sleep(delay_s)
        finally:
            finishing.cancel()
            if receiving is not None:
                receiving.cancel()

    def _check_limits(self, ends: float, *, is_done: bool) -> None:
        """Raise the reason why the session must end now, if there is one."""
        settings, now = self._state.settings, time.monotonic()
        if now > ends:
            raise IdleError(f"the session reached its limit of {settings.max_websocket_s:g} s")
        if self._is_evicted:
            raise BusyError("The session was idle and made room for a new one. Reconnect to continue.")
        if is_done:
            return
        if self._state.gate.is_draining:
            raise DrainingError("the server is shutting down; reconnect")
        if not self._unspoken and now - self._last_moved > settings.websocket_idle_s:
            raise IdleError(f"no message arrived for {settings.websocket_idle_s:g} s")

    async def _take(self, message: dict[str, Any]) -> bool:
        """Act on one message; return whether it was the last."""
        if message.get("text") is None:
            raise BodyError("binary messages are not accepted; send JSON as text")
        text = message["text"]
        match await in_turn(self._state, _parse, text) if len(text) > SMALL_BYTES else _parse(text):
            case SessionConfig() as config:
                await self._configure(config)
                return False
            case InputText(text=text):
                await self._add(text)
                return False
            case _:
                self._put(self._rest, is_last=True)
                self._stretches.put_nowait(None)
                return True

    async def _configure(self, config: SessionConfig) -> None:
        if config.voice is not None:
            await asyncio.to_thread(self._state.engine.describe_voice, config.voice)  # fail now for an unknown one
        coded, config.reference_audio = config.reference_audio, None
        recording = None if coded is None else await in_turn(self._state, decode_base64, coded)
        if recording is not None:
            read_recording(recording, self._state.engine.config.max_reference_bytes)
        self._recording, self._config = recording, config
        self._count_recordings()

    def _count_recordings(self, *, checked: bool = True) -> None:
        """Charge the recordings that are still needed. Raises `BusyError` or `TooManyRequestsError`."""
        recordings = [self._recording or b"", *(request.reference for request in self._unspoken)]
        distinct = {id(recording): len(recording) for recording in recordings}
        if self._unspoken:
            distinct.pop(id(self._unspoken[0].reference), None)  # charged by `speak`
        self._holding.set(Resource.BODY_BYTES, sum(distinct.values()), checked=checked)

    async def _add(self, text: str) -> None:
        # refused, since a client that is not read from cannot disconnect or answer a ping
        allowed = self._state.engine.config.max_text_length
        ahead = self._num_waiting + len(text)
        if ahead > allowed:
            raise TextError("text", f"is {ahead} characters ahead of the audio; at most {allowed} are allowed")
        self._says = bool(self._says)
        text = self._rest + text
        if len(text) <= SMALL_TEXT:
            whole, self._rest = split_arriving(text)
        else:
            whole, self._rest = await in_turn(self._state, split_arriving, text)
        while len(self._rest) > MAX_REST:
            cut = self._rest.rfind(" ", 1, MAX_REST) + 1 or MAX_REST
            whole, self._rest = f"{whole} {self._rest[:cut]}", self._rest[cut:]
        self._put(whole)

    def _put(self, text: str, *, is_last: bool = False) -> None:
        if is_speakable(text):
            self._says = True
        elif not is_last or self._says is not False:
            return  # but a text without anything to speak from beginning to end goes to the engine, which refuses it
        config = self._config
        request = config.build(text, config.response_format, streams=True, reference_audio=self._recording)
        self._num_waiting += len(text)
        self._unspoken.append(request)
        self._state.websockets.mark_busy(self)
        self._stretches.put_nowait(request)

    async def _speak(self) -> None:
        while (request := await self._stretches.get()) is not None:
            try:
                await self._say(request)
            except NothingToSpeakError as error:  # an error only if the whole session has nothing to speak
                self._unspeakable = self._unspeakable or error
                self._warnings += [error.warning] if error.warning else []
            self._num_waiting -= len(request.speech.text)
            self._unspoken.popleft()
            self._count_recordings(checked=False)  # `speak` has charged this one until now
            if not self._unspoken:
                self._state.websockets.mark_idle(self)
            self._last_moved = time.monotonic()
        self._is_finished.set()

    async def _say(self, request: SpeechRequest) -> None:
        state, number, before_s = self._state, self._num_spoken, self._record.audio_s
        speech = await speak(state.engine, request, settings=state.settings, record=self._record)
        start: dict[str, Any] = {
            "format": request.audio_format,
            "sample_rate": speech.sample_rate,
            "text": request.speech.text,
        }
        if request.return_spoken_text:
            start["spoken_text"] = speech.spoken_text
        await self._send({"type": "audio.start", "index": number} | start | self._warning(speech.warning))
        async with aclosing(cast("Any", speech.body)) as body:
            async for piece in body:
                self._last_moved = time.monotonic()
                await self._socket.send_bytes(piece)
        self._num_spoken += 1
        seconds = round(self._record.audio_s - before_s, 3)
        await self._send({"type": "audio.done", "index": number, "seconds": seconds})

    def _warning(self, warning: str | None = None) -> dict[str, str]:
        """Return the field `warning` of the next message, if there is one, and forget it."""
        warnings, self._warnings = [*self._warnings, *([warning] if warning else [])], []
        return {"warning": " ".join(dict.fromkeys(warnings))} if warnings else {}

    async def _send(self, content: dict[str, Any]) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.send_text(json.dumps(content))


def _parse(text: str) -> SessionConfig | InputText | InputDone:
    try:
        check_structure(text.encode(errors="surrogatepass"))
        parsed: SessionConfig | InputText | InputDone = _INPUT.validate_json(text, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        kind = MESSAGES.get(str(problems[0]["loc"][0])) if problems[0]["loc"] else None
        for each in problems:
            each["loc"] = each["loc"][1:]  # the first part is the message's type
        raise from_validation(problems, kind.model_fields if kind else ()) from None
    return parsed
