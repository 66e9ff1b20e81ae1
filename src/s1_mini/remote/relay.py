"""Requests through stages in other processes: `RemoteCore` replaces `EngineCore`.

Every utterance is requested from the last stage, which requests its input from the previous stage, and so on. Several
utterances of a request are in progress at a time. Each accepted request ends exactly once. Does not import Ray.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from s1_mini.byte_cache import ByteCache
from s1_mini.config import EngineConfig
from s1_mini.core.ledger import RequestTracker
from s1_mini.core.messages import Saved
from s1_mini.core.request import MAX_QUEUED, Request, Utterance
from s1_mini.core.speech import NEVER
from s1_mini.core.stage import Spec
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import (
    CheckpointMismatchError,
    EngineNotReadyError,
    GenerationError,
    RequestTimeoutError,
    S1MiniError,
)
from s1_mini.families.base import StageChain
from s1_mini.families.registry import family_of
from s1_mini.remote.stage_worker import fingerprint
from s1_mini.remote.work import Call, Facts, Piece, Work, receive
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.runner import as_error
from s1_mini.runtime.sizing import prefix_bytes_of
from s1_mini.runtime.synthesizer import Backend, Synthesizer, make_line
from s1_mini.runtime.tasks import Steps, Tasks

logger = logging.getLogger(__name__)

AHEAD = 8  # maximum utterances of one request that are queued or in progress
POLL_S = 0.05  # poll interval for deadlines and paused streams

Result = TypeVar("Result")
Health = Callable[[], Mapping[str, Any]]  # returns the state of the stages


class RemoteCore:
    """Runs requests through remote stages; `call` sends work to the last stage.

    `Relay` runs on an event loop in its own thread; tasks such as encoding references run in another thread.
    """

    def __init__(
        self,
        chain: StageChain,
        stage_names: Sequence[str],
        call: Call,
        config: EngineConfig,
        *,
        slots: int,
        max_open: int,
    ) -> None:
        """`slots` is the number of slots of one replica of the first stage; `max_open` limits the open utterances."""
        self.line = make_line(config.model_copy(update={"batch_timeout_ms": 0.0}))
        self.prefixes: ByteCache[Saved] = ByteCache(prefix_bytes_of(config), config.kv_cache_size)
        self.ledger, self._max_open = RequestTracker(), max_open
        self._loop = asyncio.new_event_loop()
        self._relay = self.slots = Relay(
            self, call, stage_names[-1], chain.policies[-1].output, count=slots, max_open=max_open
        )
        self._takes_in, self._is_over, self._has_failed = True, threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="s1_mini relay", daemon=True)
        self._tasks = Tasks(config.max_waiting_references, lambda: None)
        self._task_thread = ThreadPoolExecutor(1, thread_name_prefix="s1_mini references")

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._has_failed

    def start(self) -> None:
        self._thread.start()

    def watch(self) -> None:
        """Do nothing: stages have their own watchdogs, and requests have deadlines."""

    def submit(self, request: Request) -> None:
        request.speech.queue.on_take = partial(self._soon, self._relay.admit)
        self.ledger.add(request)
        if not self._takes_in:
            request.has_ended = True
            self.ledger.tell_end(
                request, EngineNotReadyError("the engine is shutting down and no longer accepts requests")
            )

    def open(self, request: Request, utterances: list[Utterance]) -> None:
        if request.has_ended:
            request.release()
            return
        if utterances:
            request.arrived, request.utterances = time.monotonic(), utterances
            self.line.submit(request)
        request.speech.queue.accept()
        self._soon(self._relay.admit if utterances else partial(self._relay.finish, request))

    def refuse(self, request: Request, error: BaseException) -> None:
        self.ledger.tell_end(request, error)
        self._soon(partial(self._relay.forget, request))

    def cancel(self, request: Request) -> None:
        self._soon(partial(self._relay.cancel, request))

    def do(self, make: Callable[[], Steps[Result]]) -> Future[Result]:
        """Run a task in the task thread and return its future. Raises `QueueFullError` or `EngineNotReadyError`."""
        future = self._tasks.submit(make)
        with suppress(RuntimeError):  # the engine has stopped meanwhile and failed the task
            self._task_thread.submit(self._run_tasks).add_done_callback(self._check_tasks)
        return future

    def stop(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        self._takes_in = False
        for request in self.ledger.all():
            request.speech.set_window(NEVER)  # no pauses, because the consumer may be the thread that waits here
        self._soon(self._relay.admit)
        ends = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while drains and self.ledger and time.monotonic() < ends and self._thread.is_alive():
            time.sleep(POLL_S)
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._task_thread.shutdown()
        self._tasks.end(EngineNotReadyError("the engine was stopped"))

    def _soon(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop is closed
            self._end_rest()

    def _end_rest(self) -> None:
        """End requests that were accepted while the loop was closing."""
        for request in self.ledger.all():
            self.ledger.tell_end(request, EngineNotReadyError("the engine was stopped"))

    def _run(self) -> None:
        reason = "was stopped"
        try:
            self._loop.run_until_complete(self._relay.run(self._is_over))
        except BaseException:  # requests must end in any case
            reason = "has died"
            logger.exception("the relay thread died")
        finally:
            self._takes_in = False
            error = EngineNotReadyError(f"the engine {reason} during this request")
            self._loop.run_until_complete(self._relay.close(error))
            self._loop.close()
            self._end_rest()

    def _run_tasks(self) -> None:
        while len(self._tasks) and not self._is_over.is_set():
            self._tasks.step(beside_speech=False)

    def _check_tasks(self, run: Future[None]) -> None:
        error = None if run.cancelled() else run.exception()
        if error is not None:  # the device is lost
            self._has_failed = True
            logger.error("the reference encoding thread died", exc_info=error)


class Relay:
    """Utterances in progress. Used only on the event loop's thread."""

    def __init__(self, core: RemoteCore, call: Call, stage: str, output: Spec, *, count: int, max_open: int) -> None:
        """`call` sends work to the last stage; `count` is the number of slots of one replica of the first stage."""
        self.count, self._max_open = count, max_open
        self._line, self._ledger = core.line, core.ledger
        self._call, self._stage, self._output = call, stage, output
        self._open: dict[Utterance, asyncio.Task[None]] = {}
        self._pieces: dict[Utterance, deque[Piece]] = {}  # output that waits until the previous utterance is delivered

    @property
    def num_free(self) -> int:
        """Free slots of the first stage, as if it had one replica; further utterances wait in the stage's queue."""
        return max(0, self.count - len(self._open))

    async def run(self, is_over: threading.Event) -> None:
        """Admit utterances and end late requests until `is_over`."""
        while not is_over.is_set():
            await asyncio.sleep(POLL_S)
            self.admit()  # a consumer may have caught up
            for request in self._ledger.late(time.monotonic()):
                seconds = f"after {request.speech.sent_s:.1f} s of audio"
                reason = seconds if request.admitted else "before its text and voice were prepared"
                self._end(request, RequestTimeoutError(f"timed out {reason}"))

    async def close(self, error: S1MiniError) -> None:
        for request in self._ledger.all():
            self._end(request, error)
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()

    def admit(self) -> None:
        """Start utterances in the order of the queue."""
        now = time.monotonic()
        for utterance in self._line.take(max(0, self._max_open - len(self._open)), now):
            if utterance.request.has_ended:  # between `open` and this call
                continue
            self._ledger.count_admitted(utterance.request, now)
            self._pieces[utterance] = deque()
            self._open[utterance] = asyncio.create_task(self._receive(utterance))
            self._open[utterance].add_done_callback(partial(self._close_one, utterance))
            self._build_later(utterance.request)

    def cancel(self, request: Request) -> None:
        """Cancel a request; does nothing if it has ended."""
        if not request.has_ended:
            request.speech.finish("cancelled", time.monotonic(), request.timing)
            self._end(request, reason="cancelled")

    def finish(self, request: Request) -> None:
        """End a request whose audio is complete; does nothing if it has ended."""
        if not request.has_ended:
            request.speech.finish(request.finish_reason, time.monotonic(), request.timing)
            self._end(request)

    def forget(self, request: Request) -> None:
        """Release a request that `RemoteCore.refuse` has ended."""
        request.has_ended = True
        request.release()

    def _close_one(self, utterance: Utterance, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._end(utterance.request, as_error(error))
        self._open.pop(utterance, None)
        self.admit()

    async def _receive(self, utterance: Utterance) -> None:
        request, waiting = utterance.request, self._pieces[utterance]
        async with aclosing(receive(self._call, self._work(utterance), self._stage, self._output)) as pieces:
            async for piece in pieces:
                set_voice = utterance.set_voice
                if piece.made is not None and set_voice is not None:  # later utterances continue this voice
                    set_voice(piece.made)
                    utterance.set_voice, request.awaits_voice = None, False
                    self._build_later(request)
                request.was_cut |= piece.was_cut
                self._ledger.metrics.frames += piece.consumed
                waiting.append(piece)
                self._deliver(request)

    def _deliver(self, request: Request) -> None:
        """Deliver the audio of the first utterance and, if it has ended, of the next ones."""
        while not request.has_ended and request.utterances:
            utterance, now = request.utterances[0], time.monotonic()
            pieces, is_over = self._pieces.get(utterance, ()), False
            while pieces:
                piece = pieces.popleft()
                is_over = piece.is_last
                if len(piece.items):
                    request.speech.push(piece.items, piece.consumed, now)
            if not is_over:
                return
            del self._pieces[utterance]
            request.front += 1
            request.utterances.remove(utterance)
            if utterance.set_voice is not None:
                self._end(request, GenerationError("the stages did not report what they generated"))
            elif request.has_more:
                request.speech.end_utterance(now, ends_part=utterance.place.ends_part)
                self._build_later(request)
            else:
                self.finish(request)

    def _build_later(self, request: Request) -> None:
        """Build the next utterances of a request in a thread."""
        count = min(MAX_QUEUED - self._line.num_waiting(request), AHEAD - len(request.utterances))
        builds = request.take_later(count)

        def work() -> list[Utterance]:
            return [later.build() for later in builds]

        if builds:
            building = asyncio.get_running_loop().run_in_executor(None, work)
            building.add_done_callback(partial(self._extend, request))

    def _extend(self, request: Request, built: asyncio.Future[list[Utterance]]) -> None:
        request.is_building = False
        if request.has_ended or built.cancelled():
            return
        error = built.exception()
        if isinstance(error, Exception):
            self._end(request, as_error(error))
            return
        request.utterances += built.result()
        self._line.extend(request, built.result())
        self.admit()

    def _end(self, request: Request, error: S1MiniError | None = None, *, reason: str = "spoken") -> None:
        """Release the resources of a request and end its stream; further calls do nothing."""
        if request.has_ended:
            return
        request.has_ended = True
        self._line.remove(request)
        for utterance in request.utterances:
            self._pieces.pop(utterance, None)
            task = self._open.get(utterance)
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._ledger.end(request, error, reason, time.monotonic())
        request.release()

    def _work(self, utterance: Utterance) -> Work:
        request = utterance.request
        return Work(
            prompt=utterance.prompt,
            sampling=request.sampling,
            seed=utterance.place.seed,
            utterance=utterance.place.number,
            max_steps=utterance.max_steps,
            profile=request.profile,
            is_streamed=request.speech.is_streamed,
            keeps=utterance.set_voice is not None,
            timeout_s=request.deadline - time.monotonic(),
        )


class ClusterEngine(ProductionTTSEngine):
    """An engine with its stages in other processes.

    It loads the checkpoint's tokenizer and voices and, for the first recording, the encoder, but no weights of stages.
    """

    def __init__(
        self,
        config: EngineConfig,
        call: Call,
        facts: Sequence[Facts],
        *,
        max_open: int,
        health: Health = dict,
    ) -> None:
        """`call` sends work to the last stage; `facts` describes one replica per stage, `health` their state."""
        super().__init__(config)
        self._call, self._facts, self._max_open, self._health = call, facts, max_open, health

    def _open(self, config: EngineConfig) -> tuple[LoadedCheckpoint, Synthesizer]:
        speaker = load(config, here=())
        return speaker, Synthesizer(speaker, config, self.metrics, open_backend=self._open_backend)

    def _open_backend(self, speaker: LoadedCheckpoint, config: EngineConfig) -> Backend:
        names, own = family_of(speaker.directory).stage_names, fingerprint(speaker.directory)
        for fact in self._facts:
            if fact.fingerprint != own:
                raise CheckpointMismatchError(
                    f"the stage {fact.stage} has a different checkpoint than {speaker.directory} on this machine; use "
                    "the same checkpoint on all machines"
                )
        first = self._facts[0]
        chain = replace(speaker.loaded.chain(first.slots, first.positions), aligner=None)  # stages send no scores
        core = RemoteCore(chain, names, self._call, config, slots=first.slots, max_open=self._max_open)
        return Backend(core, chain, first.positions)

    def health_check(self) -> dict[str, Any]:
        """Return state, placement, memory, and the replicas of each stage."""
        return super().health_check() | {"stages": dict(self._health())}
