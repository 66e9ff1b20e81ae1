"""Text to speech over the Wyoming protocol, which Home Assistant's voice assistants use, on a separate TCP port.

The protocol has no authentication. Limits, shares of clients and logs are the same as for HTTP routes; the idle
timeout and the maximum duration are those of WebSocket sessions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, cast

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

from s1_mini.exceptions import NothingToSpeakError, S1MiniError
from s1_mini.server.accounts import Resource
from s1_mini.server.bodies import check_structure
from s1_mini.server.errors import BodyError, ClientGoneError, IdleError, InvalidError, code_of, message_of, row_of
from s1_mini.server.limits import LINGER_S, Sender
from s1_mini.server.record import RequestLog, sane_id
from s1_mini.server.schemas import SessionConfig, SpeechRequest, StartOptions
from s1_mini.server.session import config_of
from s1_mini.server.speech import AudioResponse, Times
from s1_mini.server.speech_queue import Listener, SpeechQueue, Track
from s1_mini.server.state import ServerState
from s1_mini.server.text_input import TextInput
from s1_mini.types import VoiceInfo
from s1_mini.version import __version__

access_logger = logging.getLogger("s1_mini.server.access")
logger = logging.getLogger(__name__)

PROJECT = Attribution("s1_mini", "https://github.com/s1-mini/s1-mini")
MAX_AHEAD = 64  # events read ahead of the current one
EVENT_BYTES = 4096  # limit for an event without its text
CHARACTER_BYTES = 12  # maximum bytes of one character in JSON
WIDTH, CHANNELS = 2, 1


class WyomingServer:
    """Listens on the Wyoming port of an application; `state` is the application's."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises `OSError`."""
        settings, config = self._state.settings, self._state.engine.config
        limit = EVENT_BYTES + CHARACTER_BYTES * config.max_text_length
        serve = partial(self._serve, limit=limit)
        self._server = await asyncio.start_server(serve, settings.wyoming_host, settings.wyoming_port, limit=limit)
        fields = {"event": "listening_wyoming", "url": f"tcp://{settings.wyoming_host}:{self.port}"}
        logger.info("listening for Wyoming", extra={"fields": fields})

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, limit: int) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        transport = cast("asyncio.Transport", writer.transport)
        self._tasks.add(task)
        try:
            if self._state.connections.accept(transport):
                await _Connection(self._state, reader, writer, limit).run()
        except (asyncio.CancelledError, ClientGoneError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            self._state.connections.remove(transport)
            writer.close()


class _Connection:
    """One connection, with a task that reads events and a task that responds to them in order."""

    def __init__(
        self, state: ServerState, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_event_bytes: int
    ) -> None:
        self._state, self._reader, self._writer, self._limit = state, reader, writer, max_event_bytes
        self._client = state.accounts.client(writer.get_extra_info("peername")[0])
        self._holding = state.accounts.hold(self._client)
        self._events: asyncio.Queue[tuple[Event, int] | S1MiniError] = asyncio.Queue(MAX_AHEAD)

    async def run(self) -> None:
        """Respond to events until the client disconnects or an error ends the connection."""
        tasks = [
            asyncio.ensure_future(self._read()),
            asyncio.ensure_future(self._answer()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self._holding.release()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _read(self) -> None:
        """Read events until the client disconnects, or until one is malformed."""
        while True:
            try:
                event, num_bytes = await self._read_event()
                self._holding.add(Resource.BODY_BYTES, num_bytes)
            except asyncio.IncompleteReadError:
                return
            except S1MiniError as error:
                await self._events.put(error)
                while await self._reader.read(EVENT_BYTES):  # `_answer` ends the connection
                    pass
                return
            else:
                await self._events.put((event, num_bytes))

    async def _read_event(self) -> tuple[Event, int]:
        """Return the next event and its size. The wyoming package's own reader has no limits."""
        try:
            head = await self._reader.readuntil()
            fields = _parse(head)
            sizes = [fields.get(name) or 0 for name in ("data_length", "payload_length")]
            if not all(isinstance(size, int) and 0 <= size <= self._limit for size in sizes):
                raise BodyError(f"data_length and payload_length must be whole numbers up to {self._limit}")
            data = fields.get("data") or {}
            if sizes[0]:
                data |= _parse(await self._reader.readexactly(sizes[0]))
            await self._reader.readexactly(sizes[1])  # text to speech needs no payload
            if not isinstance(fields.get("type"), str) or not isinstance(data, dict):
                raise BodyError("an event needs a type, which is a string, and data, which is an object")
        except (asyncio.LimitOverrunError, ValueError, TypeError, RecursionError) as error:
            raise BodyError(f"malformed Wyoming event: {error}") from None
        return Event(fields["type"], data), len(head) + sum(sizes)

    async def _next(self, queue: SpeechQueue | None = None) -> Event:
        """Return the next event.

        Raises an error that `_read` found, and `IdleError` if none arrives in the idle timeout and `queue` is empty.
        """
        idle_s = self._state.settings.websocket_idle_s
        item: tuple[Event, int] | S1MiniError | None = None
        while item is None:
            try:
                async with asyncio.timeout(idle_s):
                    item = await self._events.get()
            except TimeoutError:
                if not queue:
                    raise IdleError(f"no event arrived for {idle_s:g} s") from None
        if isinstance(item, S1MiniError):
            raise item
        event, num_bytes = item
        self._holding.add(Resource.BODY_BYTES, -num_bytes)
        return event

    async def _answer(self) -> None:
        transport, connections = cast("asyncio.Transport", self._writer.transport), self._state.connections
        record = RequestLog(sane_id(None), "WYOMING", "/", client=self._client)
        try:
            while True:
                connections.mark_idle(transport)
                event = await self._next()
                connections.mark_busy(transport)
                if Describe.is_type(event.type):
                    await self._describe()
                elif Ping.is_type(event.type):
                    text = event.data.get("text")  # JSON may hold half of a surrogate pair, which cannot be sent
                    await self._send(Pong(text.encode(errors="replace").decode() if isinstance(text, str) else None))
                elif Synthesize.is_type(event.type) or SynthesizeStart.is_type(event.type):
                    record = RequestLog(sane_id(None), "WYOMING", event.type, client=self._client)
                    if (tracing := self._state.tracing) is not None:
                        record.trace = tracing.begin(record.id, record.method)
                    await self._speak(event, record)
        except (ConnectionError, ClientGoneError):
            raise
        except Exception as error:  # reported to the client, then the connection ends
            if not isinstance(error, S1MiniError):
                access_logger.exception("request failed", extra={"fields": record.ids})
            with suppress(OSError, ClientGoneError):  # OSError: the client is gone
                await self._send(Error(message_of(error), code_of(error)))
                self._writer.write_eof()
                # Meanwhile, `_read` continues, because a client that is still sending may not read the error yet.
                await asyncio.sleep(LINGER_S)

    async def _wake(self) -> None:
        """Load the engine if it was unloaded. Raises `EngineNotReadyError` or `DrainingError`."""
        gate = self._state.gate
        if gate.is_draining and (refused := gate.refusal()) is not None:
            raise refused
        await asyncio.shield(self._state.gate.load(self._state.lifecycle))

    async def _describe(self) -> None:
        gate = self._state.gate
        gate.enter()
        try:
            await self._wake()
            if (refused := gate.refusal()) is not None:
                raise refused
            await self._send(await asyncio.to_thread(lambda: info_of(self._state.engine.voices()).event()))
        finally:
            gate.leave()

    async def _speak(self, event: Event, record: RequestLog) -> None:
        """Speak one text or a stream of text as one stream of audio; log and count it as one request."""
        gate, is_stream = self._state.gate, SynthesizeStart.is_type(event.type)
        record.route, record.status, record.streams = f"wyoming/{event.type}", 200, True
        record.holding = self._holding.part()
        gate.enter()
        try:
            await self._wake()
            self._admit(record)
            track = Track(await self._config(event.data))
            with Sender(self._send, record, inf) as send:
                speaker = _Speaker(send, is_stream=is_stream)
                text = TextInput(self._state, record, lambda: speaker, waits=True)
                try:
                    async with asyncio.timeout(self._state.settings.max_websocket_s):
                        await text.run(self._listen(text, track, event))
                        await speaker.end()
                finally:
                    text.queue.forget()
        except TimeoutError:
            raise IdleError(f"the text took longer than {self._state.settings.max_websocket_s:g} s") from None
        except (ConnectionError, ClientGoneError):
            record.status, record.code = 499, "client_gone"
            raise
        except Exception as error:
            record.status, record.code = row_of(error).status, code_of(error)
            raise
        finally:
            record.holding.release()
            gate.leave()
            self._state.meter.count(record, time.perf_counter() - record.started)
            access_logger.info("request", extra={"fields": record.fields()})
            record.end_trace()

    def _admit(self, record: RequestLog) -> None:
        if (refused := self._state.gate.admission(record)) is not None:
            raise refused

    async def _listen(self, text: TextInput, track: Track, event: Event) -> None:
        """Take the text of `event` or, after the start of a stream, of those that follow until its end."""
        if Synthesize.is_type(event.type):
            text.queue.add(track, _text_of(event), {})
        else:
            while not SynthesizeStop.is_type((event := await self._next(text.queue)).type):
                # Other events are ignored: Home Assistant also sends the whole text as `synthesize`, for servers that
                # do not stream.
                if SynthesizeChunk.is_type(event.type):
                    await text.add(track, _text_of(event))
            text.flush(track)
        text.close()

    async def _config(self, data: dict[str, Any]) -> SessionConfig:
        """Return the voice and the format of a text. Raises `InvalidError` and the errors of `config_of`."""
        voice, text_format = data.get("voice") or {}, data.get("text_format") or "text"
        name = voice.get("name") if isinstance(voice, dict) else voice
        if not isinstance(name, str | None):
            raise InvalidError("voice", "must be an object with a name")
        if text_format not in ("text", "ssml"):
            raise InvalidError("text_format", f"{str(text_format)[:40]!r} is not supported; use text or ssml")
        start = StartOptions(start_at="sentence" if self._state.settings.start_at == "word" else None)
        config = await config_of(self._state, start, name, "pcm", None)
        return config.model_copy(update={"text_type": text_format})

    async def _send(self, message: Any) -> None:
        """Send an event once the client has read enough earlier ones."""
        await async_write_event(message if isinstance(message, Event) else message.event(), self._writer)


class _Speaker(Listener[Track]):
    """Sends the audio of one text, or of one stream of text."""

    def __init__(self, send: Callable[[Any], Awaitable[None]], *, is_stream: bool) -> None:
        self._send, self._is_stream, self._rate = send, is_stream, 0
        self._refused: NothingToSpeakError | None = None

    async def start(self, track: Track, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: ARG002
        if not self._rate:
            self._rate = speech.sample_rate
            await self._send(AudioStart(self._rate, WIDTH, CHANNELS))

    async def send_audio(self, track: Track, piece: bytes, times: Times) -> None:  # noqa: ARG002
        await self._send(AudioChunk(self._rate, WIDTH, CHANNELS, piece))

    async def skip(self, error: NothingToSpeakError) -> None:
        self._refused = error

    async def end(self) -> None:
        """Announce the end of the audio. Raises `NothingToSpeakError` if a text without a stream has no audio."""
        if self._rate:
            await self._send(AudioStop())
        elif self._refused is not None and not self._is_stream:  # Home Assistant also streams empty answers of agents
            raise self._refused
        if self._is_stream:
            await self._send(SynthesizeStopped())


def info_of(voices: Sequence[VoiceInfo]) -> Info:
    """Return the description of the server: one program with all `voices`, the default one first."""
    made: dict[str, Any] = {"attribution": PROJECT, "installed": True}
    described = [
        TtsVoice(voice.name, **made, description=voice.description, version=None, languages=[_language(voice)])
        for voice in sorted(voices, key=lambda voice: not voice.is_default)
    ]
    program = TtsProgram(
        "s1_mini",
        **made,
        description="s1_mini",
        version=__version__,
        voices=described,
        supports_synthesize_streaming=True,
    )
    return Info(tts=[program])


def _language(voice: VoiceInfo) -> str:
    return "en_GB" if re.search(r"\bBritish\b", voice.description) else "en_US"


def _parse(content: bytes) -> dict[str, Any]:
    check_structure(content)
    parsed = json.loads(content)
    if not isinstance(parsed, dict):
        raise BodyError("a Wyoming event is not a JSON object")
    return parsed


def _text_of(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise InvalidError("text", "is missing or not a string")
    return text
