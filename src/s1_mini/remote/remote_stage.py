"""Requests through stages in other processes: a stage of the scheduler, and an engine with that stage.

Every utterance is requested from the last stage, which requests its input from the previous stage, and so on. Several
utterances of a request are in progress at a time. Does not import Ray.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, StepResult
from s1_mini.core.request import Request, Source, Utterance
from s1_mini.core.scheduler import Scheduler
from s1_mini.core.stage import Progress, Spec, StagePolicy, Unit
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import CheckpointMismatchError, GenerationError
from s1_mini.families.registry import family_of
from s1_mini.remote.stage_worker import fingerprint
from s1_mini.remote.work import Call, Facts, Work, receive
from s1_mini.runtime.engine_core import Threads
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.runner import as_error, attempt
from s1_mini.runtime.sizing import prefix_bytes_of
from s1_mini.runtime.stage import Pending, Stage
from s1_mini.runtime.synthesizer import Backend, Synthesizer, make_core

AHEAD = 8  # maximum utterances of one request that are queued or in progress

Health = Callable[[], Mapping[str, Any]]  # returns the state of the stages


@dataclass(frozen=True, kw_only=True)
class Arriving(StagePolicy):
    """The policy of `RemoteStage`: a unit has all audio that has arrived."""

    is_autoregressive: bool = False

    def next_unit(self, progress: Progress) -> Unit | None:
        count = progress.available - progress.consumed
        return Unit(progress.consumed, progress.available, count) if count else None


class RemoteStage(Stage, Source):
    """The only stage of an engine whose stages are in other processes. It passes on the audio that they generate.

    An item is the audio of a frame, the last stage's input. The requests to the last stage run on an event loop in its
    own thread, and their output is the input of this stage.
    """

    device = torch.device("cpu")
    is_overlapped = False
    scheduler: Scheduler  # set before an utterance begins

    def __init__(self, call: Call, name: str, output: Spec, policy: StagePolicy) -> None:
        """`call` sends work to the last stage, which has this name and output."""
        self._call, self._name, self._output, self._policy = call, name, output, policy
        self._frames: dict[int, np.ndarray] = {}  # by slot
        self._tasks: dict[Utterance, asyncio.Task[None]] = {}
        self._loop, self._over = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="s1_mini stages", daemon=True)
        self._thread.start()

    def begin(self, begins: Sequence[Begin]) -> None:
        for begin in begins:
            self._frames[begin.slot] = np.array(begin.inputs)  # the utterance's own memory may be large

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        frames, count = [self._frames.pop(slot) for slot in slots], len(slots)
        return lambda: StepResult(frames, [len(each) for each in frames], [True] * count, [True] * count)

    def close(self) -> None:
        """Cancel all utterances."""
        self._soon(self._over.set)
        self._thread.join()

    def fetch(self, utterance: Utterance) -> None:
        self._soon(partial(self._begin, utterance))

    def forget(self, utterance: Utterance) -> None:
        self._soon(partial(self._cancel, utterance))

    def _soon(self, work: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the engine ends all requests
            self._loop.call_soon_threadsafe(work)

    # ---- on the event loop ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._over.wait())

    def _begin(self, utterance: Utterance) -> None:
        self._tasks[utterance] = task = self._loop.create_task(self._receive(utterance))
        task.add_done_callback(partial(self._end, utterance))

    def _cancel(self, utterance: Utterance) -> None:
        if (task := self._tasks.get(utterance)) is not None:
            task.cancel()

    def _end(self, utterance: Utterance, task: asyncio.Task[None]) -> None:
        del self._tasks[utterance]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(utterance.request, error.with_traceback(None))

    def _fail(self, request: Request, error: Exception) -> None:
        self.scheduler.end(request, as_error(error))

    async def _receive(self, utterance: Utterance) -> None:
        request, size = utterance.request, self._policy.input.shape[0]
        async with aclosing(receive(self._call, _work_of(utterance), self._name, self._output)) as pieces:
            async for piece in pieces:
                request.was_cut |= piece.was_cut
                if piece.is_last and piece.made is None and utterance.set_voice is not None:
                    raise GenerationError("the stages did not report what they generated")
                follows = self.scheduler.arrive(
                    utterance, piece.items.reshape(-1, size), is_final=piece.is_last, made=piece.made
                )
                for follow in follows:
                    self._loop.run_in_executor(None, attempt, follow.work, partial(self._fail, follow.request))


def _work_of(utterance: Utterance) -> Work:
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
        codec = chain.policies[-1]
        frames = Spec("float32", (round(codec.output.rate / codec.input.rate),), codec.input.rate)
        policy = Arriving(name="audio", input=frames, output=frames, slots=self._max_open, ahead=AHEAD)
        stage = RemoteStage(self._call, names[-1], codec.output, policy)
        core = make_core(
            replace(chain, policies=(policy,), stages=(stage,)),
            speaker,
            config.model_copy(update={"batch_timeout_ms": 0.0}),
            prefix_bytes_of(config),
            Threads({"audio": (0,), "references": ()}),
        )
        stage.scheduler = core.scheduler
        return Backend(core, chain, first.slots, first.positions, stage)

    def health_check(self) -> dict[str, Any]:
        """Return state, placement, memory, and the replicas of each stage."""
        return super().health_check() | {"stages": dict(self._health())}
