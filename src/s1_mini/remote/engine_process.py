"""An engine in a process of its own, so that its threads do not wait for those of the server.

Threads of one Python process run one at a time: while the server encodes and sends audio, a thread of the engine that
wakes up waits for it. `EngineProcess` has the methods of `ProductionTTSEngine` that the server uses. This module does
not import torch; `engine_worker.py` is the other process, and `channel.py` describes their messages.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from math import inf
from typing import Any, Literal, ParamSpec, TypeVar, cast

from s1_mini.config import EngineConfig
from s1_mini.core.output_queue import Output, OutputQueue
from s1_mini.exceptions import ConfigurationError, EngineNotReadyError
from s1_mini.families.find import Checkpoint
from s1_mini.metrics import MetricFamily
from s1_mini.remote.channel import (
    START,
    WINDOW_S,
    Audio,
    Call,
    Cancel,
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
    portable,
)
from s1_mini.remote.child import Child, python
from s1_mini.remote.devices import sees_gpu
from s1_mini.runtime.process import refuse_fork
from s1_mini.speech_engine import SpeechEngine
from s1_mini.types import AudioChunk, EngineState, Phases, TTSRequest, VoiceInfo

P = ParamSpec("P")
Value = TypeVar("Value")
logger = logging.getLogger(__name__)

# Program of the process. The server decides when it ends. If the server ends first, Linux kills it (prctl,
# PR_SET_PDEATHSIG), even if it hangs.
CHILD = """
import ctypes, gc, signal
gc.disable()  # collections would take a tenth of the imports' time, and find nothing
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)  # handlers, unlike SIG_IGN, are not inherited
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
from s1_mini.remote.engine_worker import main
gc.freeze()  # modules stay
gc.enable()
main()
"""
PROBE_S = 2.0  # timeout of a health check
CALL_S = 30.0  # timeout of other calls that a thread waits for
STOP_S = 3.0  # time for the engine to stop without draining; then its process is killed. A server's exit leaves 5 s


class Incoming:
    """The audio of one request on its way from the engine's process."""

    def __init__(self, number: int, queue: OutputQueue, send: Callable[[object], None]) -> None:
        self._number, self.queue, self._send = number, queue, send
        self._window = inf  # `WINDOW_S` in bytes; set by the first chunk
        self._lock = threading.Lock()  # pauses and resumes are sent in the order in which they are decided

    def receive(self, chunks: Sequence[AudioChunk]) -> None:
        """Deliver chunks to the consumer; pause the request if it has not taken many. Called by the reading thread."""
        self.queue.held_bytes = 0  # the process sends chunks only after those that it held
        for chunk in chunks:
            self.queue.put(chunk)
        with self._lock:
            self._window = WINDOW_S * chunk.sample_rate * chunk.audio.itemsize
            if not self.queue.is_paused and self.queue.queued_bytes > self._window:
                self._send(Pause(self._number, is_paused=True))
                self.queue.is_paused = True
        self.resume()  # the consumer may have taken everything by now

    def resume(self) -> None:
        """Continue a paused request once the consumer has taken half of the audio. Called by any thread."""
        with self._lock:
            if self.queue.is_paused and self.queue.queued_bytes <= self._window / 2:
                self.queue.is_paused = False
                self._send(Pause(self._number, is_paused=False))


class EngineLink(Child):
    """One running process of an engine. Thread-safe."""

    talks = True

    def __init__(self, engine: EngineProcess) -> None:
        """Start the process, which imports torch. On Linux, the process ends with the calling thread."""
        super().__init__(python(CHILD), name="engine")
        self._engine = engine
        self._state, self.voice_names = EngineState("stopped"), list[str]()
        self._numbers = itertools.count(START)
        self._outputs: dict[int, Incoming] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._on_end: dict[int, Callable[[Phases], None]] = {}  # of requests, also of those that were cancelled
        self._is_over = False
        self.launch()

    def start(self, config: EngineConfig) -> None:
        """Start the engine in the process, and wait for it. The process continues the metrics of `self._engine`.

        Raises the errors of `ProductionTTSEngine.start`, and `EngineNotReadyError` if the process exits. As in all
        answers of the process, an error that is not an `S1MiniError` arrives as `RuntimeError`.
        """
        metrics = self._engine.metrics
        try:
            facts: Facts = self.call("start", config, metrics, logging.getLogger().level).result()
        except BaseException:
            self.stop()
            raise
        self._known: dict[str, Any] = {"health_check": facts.health, "families": list(metrics.families())}
        self.description = Checkpoint(facts.directory).description
        self.num_slots, self.has_word_times = facts.num_slots, facts.has_word_times

    def submit(self, request: TTSRequest, *, streams: bool, as_int16: bool) -> Output:
        """Submit a request; the output raises its errors. Raises `ParameterError` for a `TextStream` in use."""
        number, stream = next(self._numbers), request.stream
        queue = OutputQueue(partial(self._cancel, number))
        output, self._outputs[number] = Output(queue), Incoming(number, queue, self.send)
        queue.on_take = partial(self._resume, number)
        if request.on_end is not None:
            self._on_end[number] = request.on_end
        sent = replace(request, stream=None, on_end=None)
        self.send(Speak(number, sent, streams, as_int16, stream is not None, request.on_end is not None))
        if stream is not None:
            try:
                stream.attach(lambda piece, is_last: self.send(Text(number, piece, is_last)))
            except BaseException:
                output.close()
                raise
        if self._is_over:
            self._end_all()
        return output

    def call(self, method: str, *args: Any, **options: Any) -> Future[Any]:
        """Call a method of the engine. Cancelling the future cancels the call if the method is a coroutine."""
        number, future = next(self._numbers), Future[Any]()
        self._calls[number] = future
        future.add_done_callback(lambda done: self._cancel(number) if done.cancelled() else None)
        self.send(Call(number, method, args, options))
        if self._is_over:
            self._end_all()
        return future

    def state(self) -> EngineState:
        """Return the state that the process last reported."""
        if self._state.is_ready:
            self._check()
        return self._state

    def health(self) -> dict[str, Any]:
        """Return the last known health if the process does not answer. Raises `RuntimeError` if the GPU fails."""
        health, has_answered = self._probe("health_check")
        return health if has_answered else health | {"status": self._state.status, "ready": self._state.is_ready}

    def families(self) -> list[MetricFamily]:
        """Return the last known metrics if the process does not answer. Raises `RuntimeError` if the GPU fails."""
        return cast("list[MetricFamily]", self._probe("families")[0])

    def _probe(self, method: str) -> tuple[Any, bool]:
        """Call a method without arguments. Return the last known result, and whether the process has answered."""
        if time.monotonic() - self.heard > PROBE_S:  # it does not even send its state
            return self._known[method], False
        asked = self.call(method)
        try:
            self._known[method] = asked.result(PROBE_S)
        except (TimeoutError, EngineNotReadyError):
            asked.cancel()
            return self._known[method], False
        return self._known[method], True

    def _check(self) -> None:
        """Kill the process if it hangs."""
        if not self.is_ending:
            self.check(self._engine.config.stuck_after_s)
            if self.verdict:
                self._state = EngineState("failed")

    def close(self, *, drains: bool, timeout_s: float | None) -> None:
        """Stop the engine, and end the process."""
        stopping = self.call("stop", drain=drains, timeout_s=timeout_s)
        until = time.monotonic() + STOP_S
        while not wait([stopping], PROBE_S if drains else STOP_S).done:
            self._check()
            if not drains and time.monotonic() >= until:
                self.kill(f"it did not stop within {STOP_S:g} s")
        self.stop()
        with suppress(EngineNotReadyError):  # the process has ended
            self._engine.metrics = stopping.result()

    def kill(self, verdict: str = "") -> None:
        if verdict and not self.verdict:
            logger.error("killing the engine's process: %s", verdict)
        super().kill(verdict)

    def _cancel(self, number: int) -> None:
        """Forget a request or a call, and cancel it. The garbage collector may call this, so it takes no lock."""
        self._outputs.pop(number, None)
        self._calls.pop(number, None)
        self.send(Cancel(number))

    def _resume(self, number: int) -> None:
        if (incoming := self._outputs.get(number)) is not None:
            incoming.resume()

    # ---- in the reading thread ------------------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        match message:
            case Audio():
                self._deliver(message)
            case Held():
                if (output := self._outputs.get(message.number)) is not None:
                    output.queue.held_bytes = message.num_bytes
            case Status():
                self._state = message.state
                if message.voice_names is not None:
                    self.voice_names = message.voice_names
            case Ended():
                message.phases.tell(self._on_end.pop(message.number, _ignore))
            case Result():
                self._return(message)
            case Failed():
                self._fail(message.number, message.error)
            case Log():
                logging.getLogger(message.record.name).handle(message.record)

    def _deliver(self, audio: Audio) -> None:
        if (output := self._outputs.get(audio.number)) is None:  # cancelled
            return
        if audio.chunks:
            output.receive(audio.chunks)
        if audio.has_ended and self._outputs.pop(audio.number, None) is not None:
            output.queue.end(audio.error)

    def _return(self, result: Result) -> None:
        if (future := self._calls.pop(result.number, None)) is not None:
            with suppress(InvalidStateError):  # cancelled at this moment
                future.set_result(result.value)

    def _fail(self, number: int, error: Exception) -> None:
        self._on_end.pop(number, None)
        if (output := self._outputs.pop(number, None)) is not None:
            output.queue.end(error)
        if (future := self._calls.pop(number, None)) is not None:
            with suppress(InvalidStateError):  # cancelled at this moment
                future.set_exception(error)

    def on_unsent(self, message: Any, error: Exception) -> None:
        self._fail(message.number, portable(error))

    def on_exit(self, exit_code: int) -> None:
        """End everything that is open."""
        if not self.is_ending:
            self._state = EngineState("failed")
            logger.error("the engine's process ended", extra={"fields": {"exit_code": exit_code}})
        self._is_over = True
        self._end_all()

    def _end_all(self) -> None:
        error = EngineNotReadyError("the engine's process has ended; see the server's log")
        for number in [*self._outputs, *self._calls]:
            self._fail(number, error)


def _ignore(_: Phases) -> None:
    """Take the place of a callback that is no longer needed."""


def _remote(method: Callable[P, Value]) -> Callable[P, Value]:
    """Return a method that calls this method of the engine in its process, and waits for the result."""

    @wraps(method, updated=())
    def call(*args: P.args, **options: P.kwargs) -> Value:
        engine, *rest = args
        assert isinstance(engine, EngineProcess)
        called = engine._ready().call(method.__name__, *rest, **options)
        try:
            return cast("Value", called.result(CALL_S))
        except TimeoutError:
            called.cancel()
            raise EngineNotReadyError("the engine's process does not answer") from None

    return call


class EngineProcess(SpeechEngine):
    """An engine in another process. It reports its state every `STATUS_S` seconds if it has changed."""

    _running: EngineLink | None
    _prepared: EngineLink | None = None  # a process that has not started its engine

    @property
    def process_id(self) -> int:
        """Id of the process; 0 before the start and after `stop`."""
        refuse_fork()
        link = self._running
        return link.pid if link else 0

    def prepare(self) -> None:
        """Start the process, for which `start` would otherwise wait; it takes seconds to import torch."""
        super().prepare()
        if self._running is None and self._prepared is None:
            with suppress(OSError):  # `start` tries again, and reports it
                self._prepared = EngineLink(self)

    def _load(self, config: EngineConfig) -> EngineLink:
        """Start the process and its engine. Raises the errors of `EngineLink.start`."""
        link, self._prepared = self._prepared or EngineLink(self), None
        link.start(config)
        return link

    def _ready(self) -> EngineLink:
        return cast("EngineLink", super()._ready())

    def voice_names(self) -> list[str]:
        return self._ready().voice_names

    voices = _remote(SpeechEngine.voices)
    describe_voice = _remote(SpeechEngine.describe_voice)
    delete_voice = _remote(SpeechEngine.delete_voice)
    count_tokens = _remote(SpeechEngine.count_tokens)

    async def add_voice_async(self, *args: Any, **options: Any) -> VoiceInfo:
        return cast("VoiceInfo", await asyncio.wrap_future(self._ready().call("add_voice_async", *args, **options)))

    async def prepare_reference_async(self, *args: Any, **options: Any) -> None:
        await asyncio.wrap_future(self._ready().call("prepare_reference_async", *args, **options))

    def submit(self, request: TTSRequest, *, streams: bool = True, as_int16: bool = False) -> Output:
        return self._ready().submit(request, streams=streams, as_int16=as_int16)


def make_engine(config: EngineConfig, choice: Literal["auto", "on", "off"]) -> SpeechEngine:
    """Return an engine that is not started, in its own process or in this one (`ServerSettings.engine_process`).

    Raises `ConfigurationError` for `on` in a program that cannot start a process.
    """
    can_start = bool(sys.executable) and not getattr(sys, "frozen", False)  # frozen programs have no interpreter
    if choice == "on" and not can_start:
        raise ConfigurationError("S1_MINI_SERVER_ENGINE_PROCESS=on needs a Python interpreter; set it to auto or off")
    uses_gpu = choice == "auto" and (config.device.startswith("cuda") or (config.device == "auto" and sees_gpu()))
    if can_start and (choice == "on" or uses_gpu):
        return EngineProcess(config)
    from s1_mini.engine import ProductionTTSEngine

    return ProductionTTSEngine(config)
