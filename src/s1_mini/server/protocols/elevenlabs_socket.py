"""ElevenLabs' WebSockets: `/v1/text-to-speech/{voice}/stream-input` for one text, `multi-stream-input` for several.

The texts of `multi-stream-input` are called contexts and are spoken one after the other. Clients send `close_context`
for two purposes: because a text is complete, although some of its audio is not sent yet, or to interrupt the audio. The
effect depends on the last flush:

- The context was flushed in a message without text, and has received no text since: the rest of its audio is sent. A
  second close stops the audio.
- The context was flushed in a message with text, and has received no text since: the rest of its audio is sent until
  another context begins or a second close arrives. (LiveKit flushes each sentence in the message with its text, and
  ends a context with a flush without text.)
- The context was never flushed, or has received text since the last flush: the audio stops at once.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from s1_mini.alignment.subtitles import blank_markup
from s1_mini.exceptions import RequestError
from s1_mini.server.errors import InvalidError, code_of, message_of
from s1_mini.server.protocols.elevenlabs import (
    DEFAULT_FORMAT,
    PATH,
    Alignment,
    Character,
    StreamedFormat,
    VoiceSettings,
    parse_format,
)
from s1_mini.server.schemas import SessionConfig, SpeechRequest, StartOptions
from s1_mini.server.session import Protocol, Session, config_of, converse, read_options
from s1_mini.server.speech import AudioResponse, Times
from s1_mini.server.speech_queue import Track
from s1_mini.server.state import state_of
from s1_mini.types import MAX_SEED

router = APIRouter()

MAX_CONTEXTS = 32  # open at once


class Options(StartOptions):
    """Query parameters of both routes; others are ignored."""

    output_format: StreamedFormat = DEFAULT_FORMAT
    inactivity_timeout: float | None = Field(None, gt=0)  # seconds, at most the server's own limit
    auto_mode: bool = False  # each message is a whole sentence
    enable_ssml_parsing: bool = False  # text has elements such as <break time="1s"/>, and is spoken when it is flushed
    sync_alignment: bool = False  # times count from the start of the context; False: from the last character sent
    seed: int | None = Field(None, ge=0, le=MAX_SEED)  # as in `SamplingParams`
    language_code: str | None = None  # used by models with a choice of languages


class Message(BaseModel):
    """A message of a client; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    text: str | None = None
    context_id: str | None = Field(None, max_length=256)
    flush: bool | None = None
    voice_settings: VoiceSettings | None = None
    close_context: bool | None = None
    close_socket: bool | None = None


@router.websocket(f"{PATH}/stream-input")
async def stream_input(socket: WebSocket, voice: str) -> None:
    await _converse(socket, voice, SingleText)


@router.websocket(f"{PATH}/multi-stream-input")
async def multi_stream_input(socket: WebSocket, voice: str) -> None:
    await _converse(socket, voice, SeveralTexts)


async def _converse(socket: WebSocket, voice: str, protocol: type[_ElevenLabs]) -> None:
    """Run a session. Raises `InvalidError` for a parameter, and the errors of `config_of` and `converse`."""
    options = read_options(socket, Options)
    config = await config_of(state_of(socket), options, voice, *parse_format(options.output_format))
    if options.seed is not None:
        config.seed = options.seed
    if state_of(socket).engine.description.languages:
        config.language = options.language_code
    await converse(socket, partial(protocol, options=options, config=config))


@dataclass(eq=False)
class Context(Track):
    """One text, and the times of its characters."""

    id: str | None = None
    audio_s: float = 0.0  # duration of the finished stretches of text
    alignment: Alignment | None = None  # of the stretch of text that is being spoken
    aligned_ms: int = 0  # end of the last character that was sent
    is_flushed: bool = False  # flushed, and no text received since
    is_sentence: bool = False  # the message with the last flush had text
    is_closing: bool = False


class _ElevenLabs(Protocol):
    """Base of both routes: audio is base64 in JSON, with the times of its characters."""

    messages = TypeAdapter(Message)

    def __init__(self, session: Session, options: Options, config: SessionConfig) -> None:
        super().__init__(session)
        self._options, self._config = options, config
        self.idle_s = min(self.idle_s, options.inactivity_timeout or self.idle_s)
        session.text.options = {"word_times": session.state.engine.has_word_times}

    def _open(self, name: str | None = None) -> Context:
        text_type = "ssml" if self._options.enable_ssml_parsing else "text"
        return Context(self._config.model_copy(update={"text_type": text_type}), id=name)

    def _flush(self, context: Context) -> None:
        """Speak the text so far; add the element `<speak>`, which the SSML of these clients may lack."""
        rest = context.rest.strip()
        if rest and context.config.text_type == "ssml" and not rest.startswith(("<speak", "<?xml")):
            context.rest = f"<speak>{rest}</speak>"
        self.session.text.flush(context)

    async def _add(self, context: Context, message: Message) -> None:
        if message.voice_settings is not None and message.voice_settings.speed is not None:
            context.config.speed = message.voice_settings.speed
        text = message.text or ""
        await self.session.text.add(context, text)
        has_text = bool(text.strip())
        if message.flush or (self._options.auto_mode and has_text):
            self._flush(context)
        if message.flush:
            context.is_flushed, context.is_sentence = True, has_text
        elif has_text:
            context.is_flushed = False

    async def start(self, track: Track, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: ARG002
        assert isinstance(track, Context)
        text = blank_markup(request.speech.text, request.speech.text_type, ())
        # Append a space, because clients treat a word as complete only at a space.
        track.alignment = Alignment(text if text.endswith(" ") else text + " ", track.audio_s)

    async def send_audio(self, track: Track, piece: bytes, times: Times) -> None:
        assert isinstance(track, Context)
        assert track.alignment is not None
        await self._send(track, base64.b64encode(piece).decode(), track.alignment.add(times.words))

    async def finish(self, track: Track, seconds: float) -> None:
        assert isinstance(track, Context)
        assert track.alignment is not None
        track.audio_s += seconds
        if characters := track.alignment.finish():
            await self._send(track, None, characters)

    async def _send(self, context: Context, audio: str | None, characters: list[Character]) -> None:
        times = self._times(context, characters) if characters else None
        content = {"audio": audio, "isFinal": None, "alignment": times, "normalizedAlignment": times}
        await self.session.send(content | _named(context))

    def _times(self, context: Context, characters: list[Character]) -> dict[str, Any]:
        starts = [round(each.start_s * 1000) for each in characters]
        ends = [round(each.end_s * 1000) for each in characters]
        base = 0 if self._options.sync_alignment else context.aligned_ms
        context.aligned_ms = ends[-1]
        return {
            "chars": [each.text for each in characters],
            "charStartTimesMs": [start - base for start in starts],
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }

    async def reject(self, track: Track, text: str, error: RequestError) -> None:  # noqa: ARG002
        assert isinstance(track, Context)
        await self.session.send({"message": message_of(error), "error": code_of(error)} | _named(track))

    def error(self, description: dict[str, Any], close_code: int) -> dict[str, Any]:
        error = description["error"]
        content = {"message": error["message"], "error": error["code"], "code": close_code}
        current = self.session.queue.current
        return content | (_named(current) if isinstance(current, Context) else {})


class SingleText(_ElevenLabs):
    """`stream-input`: one text, ended by a message with an empty `text`."""

    def __init__(self, session: Session, options: Options, config: SessionConfig) -> None:
        super().__init__(session, options, config)
        self._context = self._open()

    async def act(self, message: Message) -> None:
        if self.session.queue.is_closed:
            return
        await self._add(self._context, message)
        if message.text == "" and not message.flush:
            self._flush(self._context)
            self.session.text.close()

    async def end(self) -> None:
        await self.session.send({"audio": None, "isFinal": True})


class SeveralTexts(_ElevenLabs):
    """`multi-stream-input`: contexts."""

    def __init__(self, session: Session, options: Options, config: SessionConfig) -> None:
        super().__init__(session, options, config)
        self._contexts: dict[str | None, Context] = {}

    async def act(self, message: Message) -> None:
        context = self._contexts.get(message.context_id)
        if self.session.queue.is_closed:
            return
        if message.close_socket:
            for each in list(self._contexts.values()):
                if not each.is_closing:
                    await self._close(each)
            self.session.text.close()
        elif message.close_context:
            if context is not None:
                await self._close(context)
        elif not message.text:  # a flush, or a message that keeps the connection open
            if context is not None and message.flush:
                await self._add(context, message)
        else:
            if context is None or context.is_closing:
                context = await self._begin(message.context_id)
            await self._add(context, message)

    async def _begin(self, name: str | None) -> Context:
        for other in list(self._contexts.values()):
            if other.is_closing and other.is_sentence:
                await self._stop(other)
        if len(self._contexts) >= MAX_CONTEXTS:
            raise InvalidError(
                "context_id",
                f"{name!r} cannot be opened: the limit of {MAX_CONTEXTS} open contexts is reached; close one of them",
            )
        context = self._contexts[name] = self._open(name)
        return context

    async def _close(self, context: Context) -> None:
        if context.is_closing or not context.is_flushed:
            await self._stop(context)
        else:
            context.is_closing = True
            self.session.queue.then(context, partial(self._finalize, context))

    async def _stop(self, context: Context) -> None:
        await self.session.text.clear(context)
        await self._finalize(context, seconds=round(context.sent_s, 3))

    async def _finalize(self, context: Context, **details: float) -> None:
        if self._contexts.get(context.id) is context:
            del self._contexts[context.id]
        await self.session.send({"isFinal": True} | _named(context) | details)


def _named(context: Context) -> dict[str, str]:
    return {} if context.id is None else {"contextId": context.id}
