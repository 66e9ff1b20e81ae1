"""One stage of a family in its own process: it receives items from the previous stage and sends items to the next.

The stage has its own scheduler and thread, and batches utterances as it would in one process with the other stages.
Does not import Ray.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from s1_mini.config import EngineConfig
from s1_mini.core.items import Items
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import Place, Request, Utterance
from s1_mini.core.speech import Outlet
from s1_mini.core.stage import Progress, StagePolicy
from s1_mini.exceptions import CapacityError, EngineError, EngineNotReadyError, S1MiniError
from s1_mini.families.base import StageChain
from s1_mini.metrics import EngineMetrics
from s1_mini.packaging.verify import open_checkpoint
from s1_mini.remote.work import Call, Facts, LostError, Piece, Work, receive
from s1_mini.runtime.loader import load
from s1_mini.runtime.runner import as_error
from s1_mini.runtime.sizing import measure_slots
from s1_mini.runtime.synthesizer import WARM_UP_TEXT, make_core
from s1_mini.types import SamplingParams

logger = logging.getLogger(__name__)

ANY_NUMBER = 2**31  # no limit on waiting utterances, because the caller limits them
WARM_UP_STEPS = 8
WARM_UP_ITEMS = 16


class StageSpec:
    """Computes how many items the next stage needs for its next unit of work, so that no smaller messages are sent."""

    def __init__(self, policy: StagePolicy, work: Work) -> None:
        self._policy, self._work = policy, work
        self._consumed = self._units = 0

    def after(self, count: int) -> int:
        """Return the total number of items that the next stage needs for its next unit, once it has `count`."""
        while (unit := self._policy.next_unit(self._progress(count))) is not None:
            self._consumed += unit.consumes
            self._units += 1
        return self._policy.asks_at(self._progress(count))

    def _progress(self, count: int) -> Progress:
        work = self._work
        return Progress(
            available=count,
            is_final=False,
            consumed=self._consumed,
            produced=0,
            units=self._units,
            max_steps=work.max_steps,
            profile=work.profile,
            facts=work.prompt.facts,
        )


@dataclass
class Begun:
    """An utterance in progress."""

    utterance: Utterance
    queue: OutputQueue
    made: list[np.ndarray] | None = None  # output of the previous stages, once complete
    failure: S1MiniError | None = None  # error of a stage


class StageEngine:
    """One stage. `name` is its name in the model family; `previous` calls the previous stage, if there is one."""

    def __init__(self, config: EngineConfig, name: str, previous: Call | None = None) -> None:
        """Load the stage. Raises `CheckpointError`, `ConfigurationError`, or `CapacityError` if a slot is too small."""
        checkpoint = open_checkpoint(config)
        directory = checkpoint.directory
        config = config.model_copy(update={"checkpoint_path": directory, "max_queue_size": ANY_NUMBER})
        names = list(checkpoint.family.stage_names)
        self.index, self._names, self._previous = names.index(name), names, previous
        self._is_last = name == names[-1]  # its output is audio
        if self.index:
            config = config.model_copy(update={"batch_timeout_ms": 0.0})  # later stages do not wait to fill a batch
        speaker = load(config, here={name})
        slots, positions, prefix_bytes = measure_slots(speaker, config)
        chain = speaker.loaded.chain(slots, positions)
        self._policies = chain.policies
        at = slice(self.index, self.index + 1)
        own = StageChain(chain.policies[at], chain.stages[at], chain.sample_rate, chain.room)
        self.policy = own.policies[0]
        self.core = make_core(own, speaker, config, prefix_bytes)
        self._room = chain.room
        self.facts = Facts(name, self.policy.slots, positions, fingerprint(directory))
        self._numbers = itertools.count()
        self.core.start()
        with ExitStack() as cleanup:
            cleanup.callback(self.core.stop, drains=False)
            self._warm_up(speaker.loaded.prompt(WARM_UP_TEXT, ()))
            cleanup.pop_all()
        self.core.ledger.metrics = EngineMetrics()
        self.core.line.forget()
        self.core.watch()

    def close(self) -> None:
        self.core.stop(drains=False)

    async def speak(self, work: Work) -> AsyncGenerator[Piece, None]:
        """Yield the output of an utterance; the last piece may be a failure.

        Closing the iterator cancels the utterance here and at the previous stages.
        """
        try:
            begun = self._begin(work)
        except S1MiniError as error:
            yield self._failed(error)
            return
        feeding = None
        if self._previous is not None:
            feeding = asyncio.create_task(self._feed(self._previous, begun, work))
            feeding.add_done_callback(partial(self._check_feeding, begun))
        try:
            async for piece in self._collect(begun, work):
                yield piece
        except S1MiniError as error:
            yield self._failed(error, begun.failure)
        finally:
            begun.queue.close()
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)

    def _begin(self, work: Work) -> Begun:
        now, prompt = time.monotonic(), work.prompt
        queue = OutputQueue(lambda: self.core.scheduler.cancel(request))
        request = Request(
            number=next(self._numbers),
            speech=Outlet(queue, self.policy.output, arrived=now, is_streamed=work.is_streamed),
            sampling=work.sampling,
            arrived=now,
            deadline=now + work.timeout_s,
            profile=work.profile,
            first=work.utterance,
            front=work.utterance,
        )
        arriving = None
        if self.index:
            prompt = PromptTokens(np.zeros((0, *self.policy.input.shape)), facts=prompt.facts, voice=prompt.voice)
            arriving = Items(self.policy.input)
        else:
            self._check_room(work)
        place = Place(work.seed, work.utterance)
        utterance = Utterance(
            request, work.utterance, prompt, work.max_steps, place, arriving=arriving, has_arrived=arriving is None
        )
        self.core.submit(request)
        self.core.scheduler.open(request, [utterance])
        return Begun(utterance, queue)

    def _check_room(self, work: Work) -> None:
        room = self._room(work.prompt)
        if work.max_steps > room:
            raise CapacityError(
                f"the prompt and {work.max_steps} steps do not fit into a slot of {self.facts.positions} positions, "
                "because replicas of the first stage have slots of different sizes; set S1_MINI_MAX_COLUMNS to the "
                "size of the smallest slot"
            )

    async def _feed(self, previous: Call, begun: Begun, work: Work) -> None:
        async for piece in receive(previous, work, self._names[self.index - 1], self.policy.input):
            begun.utterance.request.was_cut |= piece.was_cut
            if piece.made is not None:
                begun.made = [*piece.made]
            self.core.scheduler.arrive(begun.utterance, piece.items, is_final=piece.is_last)

    def _check_feeding(self, begun: Begun, feeding: asyncio.Task[None]) -> None:
        """If the previous stage failed, end the request with the error of that stage."""
        error = None if feeding.cancelled() else feeding.exception()
        if isinstance(error, Exception):
            begun.failure = as_error(error)
            self.core.scheduler.end(begun.utterance.request, begun.failure)

    async def _collect(self, begun: Begun, work: Work) -> AsyncGenerator[Piece, None]:
        """Yield output whenever there is enough for the next stage to begin a unit of work."""
        next_stage = None if self._is_last else StageSpec(self._policies[self.index + 1], work)
        parts: list[np.ndarray] = []
        own: list[np.ndarray] = []
        count = 0
        needed = 0 if next_stage is None else next_stage.after(0)
        async for chunk in begun.queue:
            parts.append(chunk.audio)
            count += len(chunk.audio)
            is_last = chunk.finish_reason is not None
            if count < needed and not is_last:
                continue
            items = np.concatenate(parts) if len(parts) > 1 else parts[0]
            made = None
            if work.keeps:
                own.append(items)
                made = self._made(begun, own, is_last=is_last)
            yield Piece(items, is_last, chunk.finish_reason == "length", made)
            parts = []
            if next_stage is not None and not is_last:
                needed = next_stage.after(count)

    def _made(self, begun: Begun, own: list[np.ndarray], *, is_last: bool) -> list[np.ndarray] | None:
        """Return the complete output of all stages up to this one, without audio; None before it is complete."""
        if self._is_last:
            made, begun.made = begun.made, None
            return made
        return [*(begun.made or []), np.concatenate(own)] if is_last else None

    def _failed(self, error: S1MiniError, of_previous: S1MiniError | None = None) -> Piece:
        """Return an error as the last piece; as `LostError` if this stage is lost, so that another replica is tried."""
        is_lost = isinstance(error, EngineNotReadyError) and error is not of_previous
        nothing = np.zeros((0, *self.policy.output.shape), self.policy.output.dtype)
        return Piece(nothing, failure=LostError(str(error)) if is_lost else error)

    def _warm_up(self, prompt: PromptTokens) -> None:
        """Run everything once, so that the first request is not slower."""
        steps = min(WARM_UP_STEPS, max(1, self._room(prompt)))
        sampling = SamplingParams(max_new_tokens=steps)
        begun = self._begin(Work(prompt, sampling, seed=0, utterance=0, max_steps=steps))
        if self.index:
            given = np.zeros((WARM_UP_ITEMS, *self.policy.input.shape), self.policy.input.dtype)
            self.core.scheduler.arrive(begun.utterance, given, is_final=True)
        try:
            list(begun.queue)
        except EngineError as error:  # the warm-up input may produce no output
            logger.info("warm-up of stage %s ended early: %s", self.facts.stage, error)


def fingerprint(directory: Path) -> str:
    """Return a hash of a checkpoint's file names and sizes and of the content of JSON files, without subfolders."""
    digest = hashlib.sha256()
    for path in (path for path in sorted(directory.iterdir()) if path.is_file()):
        digest.update(f"{path.relative_to(directory).as_posix()} {path.stat().st_size}\n".encode())
        if path.suffix == ".json":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
