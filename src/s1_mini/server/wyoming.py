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
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

from s1_mini.exceptions import NothingToSpeakError, S1MiniError, TextError
from s1_mini.server.accounts import Resource
from s1_mini.server.bodies import check_structure, in_turn
from s1_mini.server.errors import BodyError, ClientGoneError, IdleError, InvalidError, code_of, message_of, row_of
from s1_mini.server.limits import LINGER_S, UNREAD_CHECK_S
from s1_mini.server.record import RequestLog, sane_id
from s1_mini.server.schemas import SpeechRequest, StartOptions
from s1_mini.server.speech import speak
from s1_mini.server.state import ServerState
from s1_mini.server.text_input import SMALL_TEXT
from s1_mini.server.voice_names import own_voice
from s1_mini.text.markup import begins_ssml
from s1_mini.text.split import UNREAD_S, EarlyStart, Stretches, cut_arriving, ends_sentence, is_due
from s1_mini.text.tidy import is_speakable
from s1_mini.types import Joined, TTSRequest, VoiceInfo
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

    async def _next(self, pause_s: float = 0.0) -> Event | None:
        """Return the next event; with `pause_s`, None if no event arrives for that long.

        Raises an error that `_read` found and, without `pause_s`, `IdleError` at the idle timeout.
        """
        idle_s = self._state.settings.websocket_idle_s
        try:
            async with asyncio.timeout(pause_s or idle_s):
                item = await self._events.get()
        except TimeoutError:
            if pause_s:
                return None
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
                assert event is not None
                connections.mark_busy(transport)
                if Describe.is_type(event.type):
                    await self._describe()
                elif Ping.is_type(event.type):
                    text = event.data.get("text")  # JSON may hold half of a surrogate pair, which cannot be sent
                    await self._send(Pong(text.encode(errors="replace").decode() if isinstance(text, str) else None))
                elif Synthesize.is_type(event.type) or SynthesizeStart.is_type(event.type):
                    record = RequestLog(sane_id(None), "WYOMING", event.type, client=self._client)
                    await self._speak(event, record)
        except (ConnectionError, ClientGoneError):
            raise
        except Exception as error:  # reported to the client, then the connection ends
            if not isinstance(error, S1MiniError):
                access_logger.exception("request failed", extra={"fields": {"request_id": record.id}})
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
            options = await self._options(event.data)
            cuts = "text_type" not in options and self._state.engine.description.splits
            texts = self._texts(cuts=cuts) if is_stream else _single(_text_of(event))
            # Home Assistant also streams the answers of agents that have nothing to say.
            allowed: AbstractContextManager[None] = suppress(NothingToSpeakError) if is_stream else nullcontext()
            async with aclosing(cast("Any", texts)), asyncio.timeout(self._state.settings.max_websocket_s):
                with allowed:
                    await self._say(texts, options, record)
            if is_stream:
                await self._send(SynthesizeStopped())
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

    def _admit(self, record: RequestLog) -> None:
        if (refused := self._state.gate.admission(record)) is not None:
            raise refused

    async def _say(
        self, texts: AsyncIterator[tuple[str, Joined | None]], options: dict[str, Any], record: RequestLog
    ) -> None:
        """Speak texts, which may be parts of one text. Raises `TextError` if none has anything to speak."""
        state, rate = self._state, 0
        refused = NothingToSpeakError("text", "is empty; send at least one letter, number or symbol")
        async for text, joined in texts:
            if not is_speakable(text):
                continue
            tts_request = replace(TTSRequest.of(text, on_unsupported="skip", **options), joined=joined)
            request = SpeechRequest(tts_request, "pcm", streams=True)
            try:
                speech = await speak(state.engine, request, settings=state.settings, record=record)
            except NothingToSpeakError as error:  # raised at the end if no other text was spoken
                refused = error
                continue
            if not rate:
                rate = speech.sample_rate
                await self._send(AudioStart(rate, WIDTH, CHANNELS))
            async with aclosing(cast("Any", speech.body)) as body:
                async for piece in body:
                    await self._send(AudioChunk(rate, WIDTH, CHANNELS, piece), record)
        if not rate:
            raise refused
        await self._send(AudioStop())

    async def _texts(self, *, cuts: bool) -> AsyncIterator[tuple[str, Joined | None]]:
        """Yield whole sentences as text arrives.

        SSML is yielded at the end as a whole, and so is any text if `cuts` is False.

        With the settings for an early start, the first text may be only the beginning of a sentence.
        """
        rest, num_seen, pause_s, start = "", 0, 0.0, StartOptions().early_start(self._state.settings)
        stretches = Stretches()
        while True:
            event = await self._next(pause_s)
            if event is not None and SynthesizeStop.is_type(event.type):
                break
            if event is not None:
                # Other events are ignored: Home Assistant also sends the whole text as `synthesize`, for servers that
                # do not stream.
                if not SynthesizeChunk.is_type(event.type) or not (text := _text_of(event)):
                    continue
                rest += text
            if (allowed := self._state.engine.config.max_text_length) < len(rest):
                raise TextError(
                    "text", f"has over {allowed} characters; send smaller chunks, or less text if it is SSML"
                )
            if not cuts or (self._state.engine.config.accept_ssml and begins_ssml(rest)):
                pause_s = 0.0
                continue
            if event is not None and not is_due(rest, num_seen):
                pause_s = UNREAD_S
                continue
            is_new = len(rest) > num_seen
            whole, rest = await self._cut(rest)
            beginning, rest = ("", rest) if whole else start.cut(rest, has_paused=not is_new)
            if whole or beginning:
                start = EarlyStart()
            num_seen, pause_s = len(rest), start.pause_s if is_new else 0.0
            text = whole or beginning
            if not is_speakable(text):
                stretches.skip(text)
            else:
                yield text.strip(), stretches.join(text, continues=bool(beginning) and not ends_sentence(beginning))
        is_alone = not cuts or (self._state.engine.config.accept_ssml and begins_ssml(rest))
        yield rest, None if is_alone else stretches.join(rest, is_last=True)

    async def _cut(self, text: str) -> tuple[str, str]:
        """Return the complete sentences of a text and the rest; long texts are cut in a thread."""
        if len(text) <= SMALL_TEXT:
            return cut_arriving(text)
        return await in_turn(self._state, cut_arriving, text)

    async def _options(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a request: its voice and the format of its text. Raises `InvalidError`."""
        voice, text_format = data.get("voice") or {}, data.get("text_format") or "text"
        name = voice.get("name") if isinstance(voice, dict) else voice
        if not isinstance(name, str | None):
            raise InvalidError("voice", "must be an object with a name")
        options: dict[str, Any] = {"voice": await own_voice(self._state, name, {})}
        if text_format == "text":
            return options
        if text_format != "ssml":
            raise InvalidError("text_format", f"{str(text_format)[:40]!r} is not supported; use text or ssml")
        return options | {"text_type": "ssml"}

    async def _send(self, message: Any, record: RequestLog | None = None) -> None:
        """Send an event once the client has read enough earlier ones; meanwhile, charge the client for unread audio."""
        event = message if isinstance(message, Event) else message.event()
        sending = asyncio.ensure_future(async_write_event(event, self._writer))
        try:
            while not (await asyncio.wait({sending}, timeout=UNREAD_CHECK_S))[0]:
                if record is not None and record.charge_unread is not None:
                    record.charge_unread()
            await sending
        finally:
            sending.cancel()


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


async def _single(text: str) -> AsyncIterator[tuple[str, None]]:
    yield text, None
