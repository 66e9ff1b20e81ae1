"""The process of an engine, started by `EngineProcess`.

It receives messages on standard input, and ends when its input ends, so that it never outlives the
server. Its standard output has its answers; its log records are messages too, so that the server formats them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, BinaryIO

from s1_mini.audio.container import to_int16
from s1_mini.audio.native_noise import keep_out
from s1_mini.core.output_queue import Output
from s1_mini.engine import ProductionTTSEngine
from s1_mini.files import delete_temporary_folders
from s1_mini.remote.channel import (
    HEARTBEAT_S,
    START,
    STATUS_S,
    Audio,
    Call,
    Cancel,
    Channel,
    Ended,
    Facts,
    Failed,
    Held,
    Log,
    Pause,
    Result,
    Speak,
    Status,
    Text,
    own_pipes,
    portable,
    read_messages,
)
from s1_mini.runtime.process import IdleCollector, prepare_process
from s1_mini.text_stream import BackgroundTextStream
from s1_mini.types import AudioChunk, EngineState


class Outgoing:
    """The audio of one request on its way to the server. Used by the writing thread, except where noted."""

    def __init__(
        self, speak: Speak, output: Output, text: BackgroundTextStream | None, send: Callable[[object], None]
    ) -> None:
        """`text` is the request's, if more of it may come. `send(self)` makes the writing thread call `take`."""
        self.number, self._as_int16, self.text = speak.number, speak.as_int16, text
        self._output, self._send = output, send
        self.is_paused = False  # until the consumer takes audio; set by the reading thread
        self._is_marked = False
        self._held = 0  # bytes that were reported as not sent

    def mark(self) -> None:
        """Note that there may be something to send. Called by any thread."""
        if not self._is_marked:
            self._is_marked = True
            self._send(self)

    def close(self) -> None:
        """Cancel the request if it has not ended. Called by any thread."""
        self._output.queue.watch(None)
        self._output.close()

    def take(self) -> Audio | None:
        """Return the chunks that may be sent now; None if there is nothing to send."""
        self._is_marked = False
        chunks: list[AudioChunk] = []
        is_over = False
        try:
            while not (self.is_paused or is_over):
                chunk, is_over = self._output.queue.poll()
                if chunk is None:
                    break
                chunks.append(replace(chunk, audio=to_int16(chunk.audio)) if self._as_int16 else chunk)
        except Exception as error:  # any error of the request belongs to its consumer
            return Audio(self.number, chunks, has_ended=True, error=portable(error))
        return Audio(self.number, chunks, has_ended=is_over) if chunks or is_over else None

    def held(self) -> Held | None:
        """Return how much audio waits because the consumer reads slowly, if that has changed."""
        held = self._output.unread_bytes if self.is_paused else 0
        if held == self._held:
            return None
        self._held = held
        return Held(self.number, held)


class EngineWorker:
    """Serves the messages of one server with one engine."""

    def __init__(self, engine: ProductionTTSEngine, source: BinaryIO, target: BinaryIO) -> None:
        self._engine, self._loop = engine, asyncio.new_event_loop()
        self._channel = Channel(
            source,
            target,
            name="server",
            on_message=self._receive,
            on_unsent=self._fail,
            on_end=_exit,
            expand=self._expand,
            tick_s=STATUS_S,
        )
        self.send = self._channel.send
        self._tasks: dict[int, asyncio.Task[None]] = {}  # calls in progress
        self._outgoing: dict[int, Outgoing] = {}
        self._state: EngineState | None = None  # last sent
        self._voice_changes = -1  # at the last sent names
        self._next_news = self._next_heartbeat = 0.0
        self._collector = IdleCollector()

    def run(self) -> None:
        """Start the engine, answer the first call, and serve until the process ends."""
        self._channel.start()
        self._spawn(START, self._start())
        self._loop.run_forever()

    async def _start(self) -> None:
        engine = self._engine
        await asyncio.to_thread(engine.start)
        self._collector.start()
        self.send(
            Result(START, Facts(engine.directory, engine.health_check(), engine.num_slots, engine.has_word_times))
        )

    # ---- in the reading thread ------------------------------------------------------------------------------------

    def _receive(self, message: Any) -> None:
        if isinstance(message, Pause):
            if (outgoing := self._outgoing.get(message.number)) is not None:
                outgoing.is_paused = message.is_paused
                outgoing.mark()
        else:
            self._loop.call_soon_threadsafe(self._handle, message)

    # ---- on the event loop ----------------------------------------------------------------------------------------

    def _handle(self, message: Any) -> None:
        match message:
            case Speak():
                self._speak(message)
            case Call():
                self._spawn(message.number, self._call(message))
            case Text():
                self._write_text(message)
            case Cancel():
                self._cancel(message.number)

    def _spawn(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, and send its error. Cancelled work is not answered, because the server has forgotten it."""
        task = self._tasks[number] = self._loop.create_task(work)
        task.add_done_callback(partial(self._end, number))

    def _end(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.send(Failed(number, portable(error)))

    def _speak(self, message: Speak) -> None:
        number, request, text = message.number, message.request, None
        if message.has_stream:
            text = BackgroundTextStream()
            request = replace(request, stream=text)
        if message.reports_end:
            request = replace(request, on_end=lambda phases: self.send(Ended(number, phases)))
        try:
            output = self._engine.submit(request, streams=message.streams)
        except Exception as error:  # it belongs to the request's consumer
            self.send(Failed(number, portable(error)))
            return
        output.queue.whole = False
        outgoing = self._outgoing[number] = Outgoing(message, output, text, self.send)
        output.queue.watch(outgoing.mark)
        outgoing.mark()  # for chunks that arrived before `watch`

    async def _call(self, call: Call) -> None:
        method = getattr(self._engine, call.method)
        if iscoroutinefunction(method):
            value = await method(*call.args, **call.options)
        else:
            value = await asyncio.to_thread(method, *call.args, **call.options)
        self.send(Result(call.number, self._engine.metrics if call.method == "stop" else value))

    def _write_text(self, message: Text) -> None:
        outgoing = self._outgoing.get(message.number)
        if outgoing is None or (text := outgoing.text) is None:
            return
        if message.piece:
            text.write(message.piece)
        if message.is_last:
            text.close()

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()
        if (outgoing := self._outgoing.pop(number, None)) is not None:
            outgoing.close()

    # ---- in the writing thread ------------------------------------------------------------------------------------

    def _expand(self, items: list[Any]) -> list[Any]:
        messages: list[Any] = []
        for item in items:
            if not isinstance(item, Outgoing):
                messages.append(item)
            elif item.number in self._outgoing and (audio := item.take()) is not None:
                messages.append(audio)
                if audio.has_ended and self._outgoing.pop(item.number, None) is not None:
                    item.close()
        now = time.monotonic()
        if now >= self._next_news or any(isinstance(message, Result) for message in messages):
            self._next_news = now + STATUS_S
            messages[:0] = self._news(now)  # before results, so that a caller then finds the effects of its call
            self._collector.look(is_idle=not self._tasks and not self._outgoing, now=now)
        return messages

    def _fail(self, message: Any, error: Exception) -> None:
        """End the request or the call of a message that cannot be sent."""
        failure = portable(error)
        if (number := getattr(message, "number", None)) is not None:
            self._loop.call_soon_threadsafe(self._cancel, number)
            self.send(Failed(number, failure))

    def _news(self, now: float) -> Iterator[Status | Held]:
        engine, names = self._engine, None
        state = engine.state()
        if state.is_ready and (changes := engine.voice_changes) != self._voice_changes:
            self._voice_changes, names = changes, engine.voice_names()
        if names is not None or state != self._state or now >= self._next_heartbeat:
            self._state, self._next_heartbeat = state, now + HEARTBEAT_S
            yield Status(state, names)
        for outgoing in list(self._outgoing.values()):
            if (held := outgoing.held()) is not None:
                yield held


class LogSender(logging.Handler):
    """Sends log records to the server, which writes them."""

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(Log(_portable_record(record)))
        except Exception:  # as in all handlers: a log call never raises
            self.handleError(record)


def _portable_record(record: logging.LogRecord) -> logging.LogRecord:
    """Return a picklable copy of a record, without arguments, exceptions and attributes of other packages."""
    known = logging.makeLogRecord({})
    known.__dict__.update({name: value for name, value in vars(record).items() if name in vars(known)})
    known.msg, known.args = record.getMessage(), None
    if record.exc_info:
        known.exc_text, known.exc_info = logging.Formatter().formatException(record.exc_info), None
    if (fields := getattr(record, "fields", None)) is not None:
        known.__dict__["fields"] = json.loads(json.dumps(fields, default=str))
    return known


def _exit(_: Exception | None) -> None:
    """End the process without waiting for its threads: a GPU may hang."""
    delete_temporary_folders()
    os._exit(0)


def main() -> None:
    """Serve one engine until the input ends."""
    source, target = own_pipes()
    keep_out()
    messages = read_messages(source)
    if messages is None:
        return
    config, metrics, log_level = messages[0].args
    engine = ProductionTTSEngine(config)
    engine.metrics = metrics
    worker = EngineWorker(engine, source, target)
    logging.basicConfig(level=log_level, handlers=[LogSender(worker.send)], force=True)
    prepare_process()
    worker.run()
