"""Deepgram's WebSocket `/v1/speak`, and the route of SageMaker's bidirectional streams.

Client: `Speak`, `Flush`, `Clear`, `Close`. Server: binary audio, `Flushed`, `Cleared`, `Metadata`, `Warning`, `Error`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, Field

from s1_mini.exceptions import NothingToSpeakError, RequestError
from s1_mini.server.errors import InvalidError, code_of, message_of
from s1_mini.server.protocols.websocket import Input, OwnProtocol
from s1_mini.server.schemas import SessionConfig, SpeechRequest, StartOptions
from s1_mini.server.session import Messages, Protocol, Session, config_of, converse, read_options
from s1_mini.server.speech import AudioResponse, Times
from s1_mini.server.speech_queue import AnyTrack, Track
from s1_mini.server.state import state_of
from s1_mini.types import MAX_RATE, MIN_RATE, AudioFormat

router = APIRouter()

MODEL = "s1-mini"
TELEPHONE_RATE = 8_000  # Hz of mulaw and alaw
_FORMATS: dict[str, AudioFormat] = {"linear16": "pcm", "mulaw": "mulaw", "alaw": "alaw"}


class Options(StartOptions):
    """Query parameters; others are ignored."""

    model: str | None = None  # the voice
    encoding: Literal["linear16", "mulaw", "alaw"] = "linear16"
    sample_rate: int | None = Field(None, ge=MIN_RATE, le=MAX_RATE)  # Hz


class Speak(BaseModel):
    """A piece of text."""

    type: Literal["Speak"]
    text: str


class Control(BaseModel):
    """Flush: speak all text; Clear: drop the text and stop the audio; Close: speak all text and end the session."""

    type: Literal["Flush", "Clear", "Close"]


@router.websocket("/v1/speak")
async def speak_as_deepgram(socket: WebSocket) -> None:
    config = await config_from(socket, read_options(socket, Options))
    await converse(socket, partial(Deepgram, config=config))


@router.websocket("/invocations-bidirectional-stream")
async def speak_on_sagemaker(socket: WebSocket) -> None:
    config = await config_from(socket, read_options(socket, Options))
    # Without a rate in the URL, our own protocol uses the model's rate.
    rate = config.sample_rate if "sample_rate" in socket.query_params else None
    own = config.model_copy(update={"sample_rate": rate})
    await converse(socket, partial(Recognizing, config=config, own_config=own))


async def config_from(socket: WebSocket, options: Options) -> SessionConfig:
    """Return the configuration in a URL's query. Raises `InvalidError` and the errors of `config_of`."""
    rate, default_rate = options.sample_rate, 24_000 if options.encoding == "linear16" else TELEPHONE_RATE
    if options.encoding != "linear16" and rate not in (None, TELEPHONE_RATE):
        raise InvalidError("sample_rate", f"{rate} is not supported with {options.encoding}; use {TELEPHONE_RATE}")
    return await config_of(state_of(socket), options, options.model, _FORMATS[options.encoding], rate or default_rate)


class Deepgram(Protocol[AnyTrack]):
    """Deepgram's messages."""

    messages = Messages(Speak | Control)

    def __init__(self, session: Session, config: SessionConfig) -> None:
        super().__init__(session)
        self._track = Track(config)
        self._num_answers = 0
        self._has_begun = False

    async def act(self, message: Any) -> None:
        session, track = self.session, self._track
        if not self._has_begun:
            self._has_begun = True
            name = {"model_name": track.config.voice or "default", "model_version": MODEL}
            await session.send({"type": "Metadata", "request_id": session.record.id} | name)
        if isinstance(message, Speak):
            if not session.queue.is_closed:
                await session.text.add(track, message.text)
        elif message.type == "Clear":
            await session.text.clear(track)
            await self._answer("Cleared", seconds=round(track.sent_s, 3))
        elif not session.queue.is_closed:
            session.text.flush(track)
            if message.type == "Flush":
                session.queue.then(track, partial(self._answer, "Flushed"))
            else:
                session.text.close()

    async def _answer(self, kind: str, **details: float) -> None:
        await self.session.send({"type": kind, "sequence_id": self._num_answers} | details)
        self._num_answers += 1

    async def start(self, track: AnyTrack, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: ARG002
        await self._warn(speech.warning)

    async def send_audio(self, track: AnyTrack, piece: bytes, times: Times) -> None:  # noqa: ARG002
        if piece:
            await self.session.send_bytes(piece)

    async def reject(self, track: AnyTrack, text: str, error: RequestError) -> None:  # noqa: ARG002
        await self._warn(message_of(error), code_of(error))

    async def skip(self, error: NothingToSpeakError) -> None:
        await self._warn(error.warning)

    async def _warn(self, warning: str | None, code: str = "text_warning") -> None:
        if warning:
            await self.session.send({"type": "Warning", "description": warning, "code": code})

    def error(self, description: dict[str, Any], close_code: int) -> dict[str, Any]:  # noqa: ARG002
        error = description["error"]
        return {"type": "Error", "description": error["message"], "code": error["code"]}


class Recognizing(Protocol[Track]):
    """Switches to our own protocol or to Deepgram's, depending on the client's first message."""

    messages = Messages(Input | Speak | Control)

    def __init__(self, session: Session, config: SessionConfig, own_config: SessionConfig) -> None:
        super().__init__(session)
        self._config, self._own_config = config, own_config

    async def act(self, message: Any) -> None:
        session = self.session
        is_deepgram = isinstance(message, Speak | Control)
        own = OwnProtocol(session, self._own_config)
        session.protocol = Deepgram(session, self._config) if is_deepgram else own
        await session.protocol.act(message)

    async def send_audio(self, track: Track, piece: bytes, times: Times) -> None:  # noqa: ARG002
        raise AssertionError("audio before the first message")
