"""ElevenLabs' API: `/v1/text-to-speech/{voice}`, whole or streamed, with or without character times, and WebSockets.

The WebSocket `stream-input` takes one text, `multi-stream-input` several, which are called contexts and are spoken at
the same time. Clients send `close_context` for two purposes: because a text is complete, although some of its audio
is not sent yet, or to interrupt the audio. The effect depends on the last flush:

- The context was flushed in a message without text, and has received no text since: the rest of its audio is sent. A
  second close stops the audio.
- The context was flushed in a message with text, and has received no text since: the rest of its audio is sent until
  another context begins or a second close arrives. (LiveKit flushes each sentence in the message with its text, and
  ends a context with a flush without text.)
- The context was never flushed, or has received text since the last flush: the audio stops at once.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, cast

from fastapi import APIRouter, Path, Query, Request, Response, WebSocket
from pydantic import BaseModel, ConfigDict, Field

from s1_mini.alignment.subtitles import blank_markup
from s1_mini.exceptions import RequestError, S1MiniError
from s1_mini.server.bodies import JSON, read_json
from s1_mini.server.errors import InvalidError, code_of, message_of, row_of
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, inlined
from s1_mini.server.routes import ready_engine
from s1_mini.server.schemas import (
    SKIP_BY_DEFAULT,
    Sampling,
    SessionConfig,
    SpeechRequest,
    StartOptions,
    Text,
    VoiceAnswer,
)
from s1_mini.server.session import Messages, Protocol, Session, config_of, converse, read_options
from s1_mini.server.speech import AudioResponse, StreamedAnswer, Times, in_lines, respond, speak_body
from s1_mini.server.speech_queue import Track
from s1_mini.server.state import state_of
from s1_mini.types import MAX_SEED, MAX_SPEED, MIN_SPEED, AudioFormat, OnUnsupported, Word

router = APIRouter(tags=["elevenlabs"])

PATH = "/v1/text-to-speech/{voice}"

# codec, sample rate and bit rate; the bit rate has no effect
_Mp3 = Literal["mp3_22050_32", "mp3_24000_48", "mp3_44100_32", "mp3_44100_64", "mp3_44100_96", "mp3_44100_128"]
_Pcm = Literal["pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_32000", "pcm_44100", "pcm_48000"]
_Wav = Literal["wav_8000", "wav_16000", "wav_22050", "wav_24000", "wav_32000", "wav_44100", "wav_48000"]
_Opus = Literal["opus_48000_32", "opus_48000_64", "opus_48000_96", "opus_48000_128", "opus_48000_192"]
StreamedFormat = Literal[_Mp3, "mp3_44100_192", _Pcm, "ulaw_8000", "alaw_8000", _Opus]
WholeFormat = Literal[StreamedFormat, _Wav]
DEFAULT_FORMAT: StreamedFormat = "mp3_44100_128"
_FORMATS: dict[str, AudioFormat] = {"ulaw": "mulaw"}  # ElevenLabs' codec names that differ from ours

VoiceId = Annotated[
    str,
    Path(
        description="A name from GET /v1/voices, a name in S1_MINI_SERVER_VOICE_NAMES, or a voice name of OpenAI or "
        "Kokoro."
    ),
]
_FORMAT = Query(description="Codec, sample rate in Hz and bit rate; the bit rate has no effect.")
Whole = Annotated[WholeFormat, _FORMAT]
Streamed = Annotated[StreamedFormat, _FORMAT]


class VoiceSettings(BaseModel):
    """`voice_settings` of a request; only `speed` has an effect."""

    model_config = ConfigDict(extra="ignore")

    speed: float | None = Field(
        None, ge=MIN_SPEED, le=MAX_SPEED, description="2 is twice as fast; the pitch is unchanged."
    )


class ElevenLabsBody(Sampling):
    """Body of ElevenLabs' routes. Fields without an equivalent here are ignored."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"text": "Good morning.", "voice_settings": {"speed": 1.1}}]}
    )

    on_unsupported: OnUnsupported | None = SKIP_BY_DEFAULT
    text: Text
    model_id: str | None = Field(None, description="Ignored: the server has one checkpoint.")
    language_code: str | None = Field(None, description="Language tag, for models with a choice of languages.")
    voice_settings: VoiceSettings | None = None
    previous_text: str | None = Field(None, description="Ignored.")
    next_text: str | None = Field(None, description="Ignored.")


class CharacterTimes(BaseModel):
    """Characters of the text, and when each is spoken, in seconds."""

    characters: list[str]
    character_start_times_seconds: list[float]
    character_end_times_seconds: list[float]


class TimedAudio(BaseModel):
    """Audio, and the times of its characters (null if the checkpoint reports no times)."""

    audio_base64: str
    alignment: CharacterTimes | None
    normalized_alignment: CharacterTimes | None


TIMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "JSON, or JSON lines", "content": {JSON: {"schema": inlined(TimedAudio.model_json_schema())}}}
}


def _answer(answer: dict[int | str, dict[str, Any]]) -> dict[str, Any]:
    """Return a route's part of the OpenAPI document."""
    responses = answer | failures(404, 500, 504)
    return {"response_class": Response, "responses": responses, "openapi_extra": body_of(ElevenLabsBody)}


@router.post(PATH, summary="Speak a text, as ElevenLabs' API does", **_answer(SPEECH_ANSWER))
async def convert(request: Request, voice: VoiceId, output_format: Whole = DEFAULT_FORMAT) -> Response:
    """Speak a text; the response is the whole audio."""
    speech, _ = await _speak(request, voice, output_format, streams=False)
    return respond(speech)


@router.post(f"{PATH}/stream", summary="Speak a text as a stream, as ElevenLabs' API does", **_answer(SPEECH_ANSWER))
async def stream(request: Request, voice: VoiceId, output_format: Streamed = DEFAULT_FORMAT) -> Response:
    """Speak a text; the response is sent while it is generated."""
    speech, _ = await _speak(request, voice, output_format, streams=True)
    return respond(speech)


@router.post(f"{PATH}/with-timestamps", summary="Speak a text with the times of its characters", **_answer(TIMED))
async def convert_with_timestamps(request: Request, voice: VoiceId, output_format: Whole = DEFAULT_FORMAT) -> Response:
    """Speak a text; the response is the whole audio as base64, with the times of its characters."""
    speech, alignment = await _speak(request, voice, output_format, streams=False)
    content = await asyncio.to_thread(
        _timed, speech.content or b"", alignment.add(speech.take_times().words) + alignment.finish()
    )
    return Response(content, media_type=JSON, headers=speech.headers)


@router.post(
    f"{PATH}/stream/with-timestamps",
    summary="Speak a text as a stream with the times of its characters",
    **_answer(TIMED),
)
async def stream_with_timestamps(
    request: Request, voice: VoiceId, output_format: Streamed = DEFAULT_FORMAT
) -> Response:
    """Speak a text; each line of the response is a JSON object with audio and the times of characters."""
    speech, alignment = await _speak(request, voice, output_format, streams=True)
    return StreamedAnswer(in_lines(speech, partial(_line, alignment=alignment)), JSON, speech.headers)


class VoicesPage(BaseModel):
    """A page of the voices, in the order of their names."""

    voices: list[VoiceAnswer]
    has_more: bool
    total_count: int = Field(description="Number of voices that match, on all pages.")
    next_page_token: str | None = Field(description="Send it to get the next page.")


# A plain function, which runs in a thread: there may be a hundred thousand voices.
@router.get(
    "/v2/voices", summary="Search voices, as ElevenLabs' API does", responses=failures(422, 503, has_body=False)
)
def search_voices(
    request: Request,
    *,
    search: Annotated[str, Query(description="Part of a name, description or category.", max_length=1000)] = "",
    category: str | None = None,
    voice_ids: Annotated[list[str] | None, Query()] = None,
    sort_direction: Literal["asc", "desc"] = "asc",
    page_size: Annotated[int, Query(ge=1, le=100)] = 10,
    next_page_token: Annotated[str, Query(description="`next_page_token` of the page before.")] = "",
) -> VoicesPage:
    """List the voices in pages; other parameters are ignored."""
    given, is_reversed = map(VoiceAnswer.of, ready_engine(request).voices()), sort_direction == "desc"
    matching = [
        voice
        for voice in sorted(given, key=lambda voice: voice.name, reverse=is_reversed)
        if search.lower() in f"{voice.name}\n{voice.description}\n{voice.category}".lower()
        and (category in (None, voice.category))
        and (voice_ids is None or voice.name in voice_ids)
    ]
    after = next_page_token
    left = [each for each in matching if not after or (each.name < after if is_reversed else each.name > after)]
    has_more = len(left) > page_size
    last = left[page_size - 1].name if has_more else None
    return VoicesPage(voices=left[:page_size], has_more=has_more, total_count=len(matching), next_page_token=last)


async def _speak(request: Request, voice: str, output_format: str, *, streams: bool) -> tuple[AudioResponse, Alignment]:
    body = await read_json(request, ElevenLabsBody)
    audio_format, rate = parse_format(output_format)
    speed = body.voice_settings and body.voice_settings.speed
    speech = await speak_body(
        request,
        body,
        body.text,
        audio_format,
        streams=streams,
        voice=voice,
        sample_rate=rate,
        speed=body.speed if speed is None else speed,
        language=body.language or body.language_code,
        word_times=state_of(request).engine.has_word_times,
    )
    return speech, Alignment(body.text)


def _line(piece: bytes, times: Times, alignment: Alignment) -> bytes:
    characters = alignment.add(times.words) + ([] if piece else alignment.finish())
    return _timed(piece, characters) + b"\n" if piece or characters else b""


def _timed(audio: bytes, characters: list[Character]) -> bytes:
    times = characters and CharacterTimes(
        characters=[each.text for each in characters],
        character_start_times_seconds=[round(each.start_s, 3) for each in characters],
        character_end_times_seconds=[round(each.end_s, 3) for each in characters],
    )
    coded = base64.b64encode(audio).decode()
    answer = TimedAudio(audio_base64=coded, alignment=times or None, normalized_alignment=times or None)
    return answer.model_dump_json().encode()


def parse_format(name: str) -> tuple[AudioFormat, int]:
    """Return our format and the sample rate in Hz for one of `WholeFormat`."""
    codec, rate, *_ = name.split("_")
    return _FORMATS.get(codec, cast("AudioFormat", codec)), int(rate)


class Character(NamedTuple):
    """A character of the text, and when it is spoken."""

    text: str
    start_s: float
    end_s: float


class Alignment:
    """Times of the characters of a text, interpolated linearly within words and between them."""

    def __init__(self, text: str, start_s: float = 0.0) -> None:
        """`start_s` is the start of the text's audio; it is added to all times."""
        self._text, self._offset_s = text, start_s
        self._position, self._end_s = 0, start_s  # where the previous word ends, in the text and in time

    def add(self, words: Sequence[Word]) -> list[Character]:
        """Return the characters from the end of the previous word to the end of the last of `words`."""
        characters = []
        for word in words:
            start_s, end_s = self._offset_s + word.start_s, self._offset_s + word.end_s
            characters += self._spread(word.start, start_s) + self._spread(word.stop, end_s)
        return characters

    def finish(self) -> list[Character]:
        """Return the characters after the last word, with duration 0; empty if no word had a time."""
        return self._spread(len(self._text), self._end_s) if self._position else []

    def _spread(self, stop: int, end_s: float) -> list[Character]:
        """Distribute the time until `end_s` among the characters before `stop`."""
        text, begin_s = self._text[self._position : stop], self._end_s
        if not text:
            self._end_s = max(end_s, begin_s)
            return []
        step_s = max(0.0, end_s - begin_s) / len(text)
        self._position, self._end_s = stop, begin_s + step_s * len(text)
        return [
            Character(each, begin_s + number * step_s, begin_s + (number + 1) * step_s)
            for number, each in enumerate(text)
        ]


MAX_CONTEXTS = 32  # open or still spoken


class SocketOptions(StartOptions):
    """Query parameters of both WebSockets; others are ignored."""

    output_format: StreamedFormat = DEFAULT_FORMAT
    inactivity_timeout: float | None = Field(None, gt=0)  # seconds, at most the server's own limit
    auto_mode: bool = False  # each message is a whole sentence
    enable_ssml_parsing: bool = False  # text has elements such as <break time="1s"/>, and is spoken when it is flushed
    sync_alignment: bool = False  # times count from the start of the context; False: from the last character sent
    seed: int | None = Field(None, ge=0, le=MAX_SEED)  # as in `SamplingParams`
    language_code: str | None = None  # used by models with a choice of languages


class Message(BaseModel):
    """A message of a WebSocket's client; other fields are ignored."""

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
    options = read_options(socket, SocketOptions)
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

    @property
    def ends_at_once(self) -> bool:
        """Whether another `close_context` stops the audio."""
        return self.is_closing or not self.is_flushed


class _ElevenLabs(Protocol[Context]):
    """Base of both WebSockets: audio is base64 in JSON, with the times of its characters."""

    messages = Messages(Message)

    def __init__(self, session: Session, options: SocketOptions, config: SessionConfig) -> None:
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

    async def start(self, track: Context, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: ARG002
        text = blank_markup(request.speech.text, request.speech.text_type, ())
        # Append a space, because clients treat a word as complete only at a space.
        track.alignment = Alignment(text if text.endswith(" ") else text + " ", track.audio_s)

    async def send_audio(self, track: Context, piece: bytes, times: Times) -> None:
        assert track.alignment is not None
        await self._send(track, base64.b64encode(piece).decode(), track.alignment.add(times.words))

    async def finish(self, track: Context, seconds: float) -> None:
        assert track.alignment is not None
        track.audio_s += seconds
        if characters := track.alignment.finish():
            await self._send(track, None, characters)

    async def _send(self, context: Context, audio: str | None, characters: list[Character]) -> None:
        times = self._times(context, characters) if characters else None
        content = {"audio": audio, "isFinal": None, "alignment": times, "normalizedAlignment": times}
        await self.session.send(content | _named(context.id))

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

    async def reject(self, track: Context, text: str, error: RequestError) -> None:  # noqa: ARG002
        await self._report(track.id, error)

    async def _report(self, name: str | None, error: S1MiniError) -> None:
        self.session.record.fail(error)
        await self.session.send({"message": message_of(error), "error": code_of(error)} | _named(name))

    def error(self, description: dict[str, Any], close_code: int) -> dict[str, Any]:
        error = description["error"]
        content = {"message": error["message"], "error": error["code"], "code": close_code}
        failed = self.session.queue.failed
        return content | _named(failed.id if isinstance(failed, Context) else None)


class SingleText(_ElevenLabs):
    """`stream-input`: one text, ended by a message with an empty `text`."""

    def __init__(self, session: Session, options: SocketOptions, config: SessionConfig) -> None:
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

    def __init__(self, session: Session, options: SocketOptions, config: SessionConfig) -> None:
        super().__init__(session, options, config)
        self._contexts: list[Context] = []  # whose `isFinal` was not sent; several with the same id follow one another

    async def act(self, message: Message) -> None:
        try:
            await self._act(message)
        except RequestError as error:
            await self._report(message.context_id, error)
            for each in self._contexts.copy():
                if each.id == message.context_id and not each.is_closing:
                    await self._stop(each)

    def give_up(self, track: Context, error: BaseException) -> Callable[[], Coroutine[Any, Any, None]]:
        if not isinstance(error, S1MiniError) or row_of(error).status in (429, 503):  # errors of all contexts
            raise error
        track.is_closing, track.is_sentence = True, False  # more text with this id begins another context
        self.session.text.forget(track)
        return partial(self._fail, track, error)

    async def _fail(self, context: Context, error: S1MiniError) -> None:
        await self._report(context.id, error)
        if context in self._contexts:
            await self._finalize(context, seconds=round(context.sent_s, 3))

    async def _act(self, message: Message) -> None:
        if self.session.queue.is_closed:
            return
        same = [each for each in self._contexts if each.id == message.context_id]
        context = same[-1] if same else None
        if message.close_socket:
            for each in self._contexts.copy():
                if not each.is_closing:
                    await self._close(each)
            self.session.text.close()
        elif message.close_context:
            for each in same if context is not None and context.ends_at_once else same[-1:]:
                await self._close(each)
        elif not message.text:  # a flush, or a message that keeps the connection open
            if context is not None and message.flush:
                await self._add(context, message)
        else:
            if context is None or context.is_closing:
                context = await self._begin(message.context_id, context)
            await self._add(context, message)

    async def _begin(self, name: str | None, before: Context | None) -> Context:
        """Open a context; it is spoken after `before`, which has the same id."""
        for other in self._contexts.copy():
            if other.is_closing and other.is_sentence:
                await self._stop(other)
        if len(self._contexts) >= MAX_CONTEXTS:
            reason = f"the limit of {MAX_CONTEXTS} contexts that are open or not spoken completely is reached"
            raise InvalidError("context_id", f"{name!r} cannot be opened: {reason}; wait until one of them has ended")
        context = self._open(name)
        context.after = before
        self._contexts.append(context)
        return context

    async def _close(self, context: Context) -> None:
        if not context.ends_at_once:
            try:
                self.session.queue.then(context, partial(self._finalize, context))
            except RequestError as error:
                await self._report(context.id, error)
            else:
                context.is_closing = True
                return
        await self._stop(context)

    async def _stop(self, context: Context) -> None:
        if context in self._contexts:
            await self.session.text.clear(context)
            await self._finalize(context, seconds=round(context.sent_s, 3))

    async def _finalize(self, context: Context, **details: float) -> None:
        self._contexts.remove(context)
        await self.session.send({"isFinal": True} | _named(context.id) | details)


def _named(context: str | None) -> dict[str, str]:
    return {} if context is None else {"contextId": context}
