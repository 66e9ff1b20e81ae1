"""Takes requests through stages in other processes: it stands where `EngineCore` stands for those of this process.

One thread with an event loop does all of it. Every utterance is drawn from the last stage, which draws from the one
before, and so on. A request's utterances are begun some ahead of the one that is heard. Each request that was taken in
ends exactly once, with sound or with an error of its own. Knows no Ray.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from s1_mini.byte_cache import ByteCache
from s1_mini.config import EngineConfig
from s1_mini.core.ledger import Ledger
from s1_mini.core.messages import Saved
from s1_mini.core.request import MAX_QUEUED, Request, Utterance
from s1_mini.core.speech import NEVER
from s1_mini.exceptions import EngineNotReadyError, GenerationError, RequestTimeoutError, S1MiniError
from s1_mini.families.base import Chain
from s1_mini.metrics import EngineMetrics
from s1_mini.remote.draw import draw
from s1_mini.remote.work import Call, Piece, Work
from s1_mini.runtime.runner import as_error
from s1_mini.runtime.synthesizer import make_line
from s1_mini.runtime.tasks import Steps, Tasks

logger = logging.getLogger(__name__)

AHEAD = 8  # utterances of one request in the queue and in work, the one that is heard among them
LOOK_S = 0.05  # how often deadlines are looked at
IDLE_S = 0.2  # how often the thread of references looks whether to go on

Result = TypeVar("Result")


@dataclass
class Stretch:
    """Slots of the first stage, in all its replicas as there were at the start; more may be begun, and wait there."""

    count: int
    num_used: int = 0

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return max(0, self.count - self.num_used)


class Spoken:
    """What has come of one utterance and is not given out, since another one's turn is."""

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.is_over = False


class RemoteCore:
    """Runs requests through the stages of one family, the last of which `call` reaches."""

    def __init__(
        self, chain: Chain, stage_names: Sequence[str], call: Call, config: EngineConfig, *, slots: int, max_open: int
    ) -> None:
        """`slots` are the first stage's, `max_open` the utterances that are begun at a time."""
        self.line = make_line(config.model_copy(update={"batch_timeout_ms": 0.0}))
        self.prefixes: ByteCache[Saved] = ByteCache(round(config.prefix_cache_mb * 1e6), config.kv_cache_size)
        self.ledger, self.slots = Ledger(), Stretch(slots)
        self._chain, self._last, self._call, self._max_open = chain, stage_names[-1], call, max_open
        self._open: dict[Utterance, asyncio.Task[None]] = {}
        self._spoken: dict[Utterance, Spoken] = {}
        self._cancelled: deque[Request] = deque()
        self._takes_in, self._is_over = True, threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="s1_mini relay", daemon=True)
        self._tasks = Tasks(config.max_waiting_references, lambda: None)
        self._task_given = threading.Event()
        self._task_thread = threading.Thread(target=self._run_tasks, name="s1_mini references", daemon=True)

    # ---- for callers ------------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> EngineMetrics:
        """What it counts."""
        return self.ledger.metrics

    @metrics.setter
    def metrics(self, metrics: EngineMetrics) -> None:
        self.ledger.metrics = metrics

    @property
    def is_alive(self) -> bool:
        """Whether its threads run."""
        return self._thread.is_alive() and self._task_thread.is_alive()

    @property
    def num_requests(self) -> int:
        """Requests that were taken in and have not ended."""
        return len(self.ledger)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()
        self._task_thread.start()

    def watch(self) -> None:
        """Do nothing: stages look after themselves, and requests have deadlines."""

    def submit(self, request: Request) -> None:
        """Take a request in. Raises `QueueFullError`, or `EngineNotReadyError` once stopped."""
        if self._is_closed():
            raise EngineNotReadyError("the engine is stopping and takes in nothing more")
        self.line.submit(request, max(1.0, 2.0 * self.line.num_requests / self._max_open))
        request.speech.queue.on_take = partial(self._soon, self._admit)
        self.ledger.add(request)
        if self._is_closed():  # the end of all may have missed it
            self.ledger.tell_end(request, EngineNotReadyError("the engine was stopped"))
        self._soon(self._admit)

    def cancel(self, request: Request) -> None:
        """End a request whose listener has gone, soon; does nothing if it has ended."""
        self._cancelled.append(request)
        self._soon(self._end_cancelled)

    def do(self, make: Callable[[], Steps[Result]]) -> Future[Result]:
        """Have done what `make` begins, one `yield` at a time, in a thread for such. Raises as `submit`."""
        future = self._tasks.submit(make)
        self._task_given.set()
        return future

    def stop(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        """Take in no more; finish what was taken in, or end it with `EngineNotReadyError`."""
        self._takes_in = False
        for request in self.ledger.all():
            request.speech.set_window(NEVER)  # its consumer may be who waits for the end
        self._soon(self._admit)
        ends = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while drains and self.ledger and time.monotonic() < ends and self._thread.is_alive():
            time.sleep(LOOK_S)
        self._is_over.set()
        self._task_given.set()
        for thread in (self._thread, self._task_thread):
            if thread.is_alive():
                thread.join()
        self._tasks.end(EngineNotReadyError("the engine was stopped"))

    # ---- in the thread of the event loop ----------------------------------------------------------------------------

    def _is_closed(self) -> bool:
        return not self._takes_in

    def _soon(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # it is closed: all has ended
            logger.debug("nothing is done any more")

    def _run(self) -> None:
        reason = "was stopped"
        try:
            self._loop.run_until_complete(self._live())
        except BaseException:
            reason = "has died"
            logger.exception("the thread of the relay has died")
        finally:
            self._takes_in = False
            error = EngineNotReadyError(f"the engine {reason} while this was being spoken")
            for request in self.ledger.all():
                self._end(request, error)
            self._loop.run_until_complete(self._close())
            self._loop.close()

    async def _live(self) -> None:
        while not self._is_over.is_set():
            await asyncio.sleep(LOOK_S)
            self._admit()  # a consumer may have caught up between two looks at it
            for request in self.ledger.late(time.monotonic()):
                told = f"not finished in time, after {request.speech.sent_s:.1f} s of sound"
                self._end(request, RequestTimeoutError(told))

    async def _close(self) -> None:
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _run_tasks(self) -> None:
        while not self._is_over.is_set():
            self._task_given.wait(IDLE_S)
            self._task_given.clear()
            while len(self._tasks) and not self._is_over.is_set():
                self._tasks.step(beside_speech=False)

    def _admit(self) -> None:
        """Begin utterances in the order of the queue."""
        now = time.monotonic()
        for utterance in self.line.take(max(0, self._max_open - len(self._open)), now):
            self.ledger.count_admitted(utterance.request, now)
            spoken = self._spoken[utterance] = Spoken()
            self._open[utterance] = self._loop.create_task(self._speak(utterance, spoken))
            self._open[utterance].add_done_callback(partial(self._close_one, utterance))
            self._build_later(utterance.request)
        self.slots.num_used = len(self._open)

    def _build_later(self, request: Request, prepare: Callable[[], None] = lambda: None) -> None:
        """Have a request's next utterances built after `prepare`, in a thread."""
        count = min(MAX_QUEUED - self.line.num_waiting(request), AHEAD - len(request.utterances))
        builds = request.take_later(count)

        def work() -> list[Utterance]:
            prepare()
            return [build() for build in builds]

        if builds:
            building = self._loop.run_in_executor(None, work)
            building.add_done_callback(partial(self._extend, request))

    def _close_one(self, utterance: Utterance, _: asyncio.Task[None]) -> None:
        self._open.pop(utterance, None)
        self.slots.num_used = len(self._open)
        self._admit()

    async def _speak(self, utterance: Utterance, spoken: Spoken) -> None:
        """Have one utterance spoken."""
        request = utterance.request
        work = Work(
            prompt=utterance.prompt,
            sampling=request.sampling,
            seed=request.seed,
            utterance=utterance.index,
            max_steps=utterance.max_steps,
            profile=request.profile,
            is_streamed=request.speech.is_streamed,
            keeps=request.set_voice is not None,
            pins=self.prefixes.is_pinned(utterance.prompt.prefix_key),
            timeout_s=request.deadline - time.monotonic(),
        )
        try:
            async with aclosing(draw(self._call, work, self._last, self._chain.policies[-1].output)) as pieces:
                async for piece in pieces:
                    if piece.made is not None:
                        self._continue(request, piece.made)
                    request.was_cut |= piece.was_cut
                    self.metrics.frames += piece.consumed
                    spoken.pieces.append(piece)
                    spoken.is_over = piece.is_last
                    self._give_out(request)
        except Exception as error:  # whatever it is, who waits must be told
            self._end(request, as_error(error))

    def _give_out(self, request: Request) -> None:
        """Give out the sound of the utterance whose turn it is, and of the next if that one is over."""
        while not request.has_ended and request.utterances:
            utterance = request.utterances[0]
            spoken = self._spoken.get(utterance)
            if spoken is None:
                return
            now = time.monotonic()
            while spoken.pieces:
                piece = spoken.pieces.popleft()
                if len(piece.items):
                    request.speech.push(piece.items, piece.consumed, now)
            if not spoken.is_over:
                return
            del self._spoken[utterance]
            request.front += 1
            request.utterances.remove(utterance)
            if request.set_voice is not None:
                self._end(request, GenerationError("the stages did not tell what they have made"))
            elif request.has_more:
                request.speech.end_utterance(now)
                self._build_later(request)
            else:
                request.speech.finish(request.finish_reason, now, queue_s=request.queue_s, prefill_s=None)
                self._end(request)

    def _continue(self, request: Request, items: Sequence[np.ndarray]) -> None:
        """Set the voice of the later utterances from the first, if none was asked for, and build the next."""
        set_voice, request.set_voice = request.set_voice, None
        if set_voice is not None:
            self._build_later(request, partial(set_voice, items))

    def _extend(self, request: Request, following: Future[list[Utterance]] | asyncio.Future[list[Utterance]]) -> None:
        request.is_building = False
        if request.has_ended or following.cancelled():
            return
        error = following.exception()
        if isinstance(error, Exception):
            self._end(request, as_error(error))
            return
        utterances = following.result()
        request.utterances += utterances
        self.line.extend(request, utterances)
        self._admit()

    def _end_cancelled(self) -> None:
        while self._cancelled:
            request = self._cancelled.popleft()
            if not request.has_ended:
                now = time.monotonic()
                request.speech.finish("cancelled", now, queue_s=request.queue_s, prefill_s=None)
                self._end(request, reason="cancelled")

    def _end(self, request: Request, error: S1MiniError | None = None, *, reason: str = "spoken") -> None:
        """Let go of all that a request has, and tell its listener; does nothing the second time."""
        if request.has_ended:
            return
        request.has_ended = True
        self.line.remove(request)
        for utterance in request.utterances:
            self._spoken.pop(utterance, None)
            task = self._open.get(utterance)
            if task is not None and task is not asyncio.current_task(self._loop):
                task.cancel()
        self.ledger.end(request, error, reason, time.monotonic())
