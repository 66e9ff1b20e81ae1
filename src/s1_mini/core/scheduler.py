"""The scheduler of a chain of stages. It handles each request from its submission to its end.

Stage threads call `wait` and `plan`, carry out the plan, and call `report`. A single lock guards all state; no stage
computes while a thread holds the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from s1_mini.byte_cache import ByteCache
from s1_mini.core.ledger import RequestTracker
from s1_mini.core.messages import Plan, Report, Saved, StepResult
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import MAX_QUEUED, Request, StageSequence, Utterance
from s1_mini.core.stage import NEVER, StagePolicy, begins_longer
from s1_mini.core.stage_queue import Owners, StageQueue
from s1_mini.core.turns import SlotShares
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import EngineNotReadyError, GenerationError, RequestTimeoutError, S1MiniError, TextIdleError
from s1_mini.types import ChunkProfile

logger = logging.getLogger(__name__)

NONE = -1  # takes the place of a stage's index for the thread without stages
POLL_S = 0.1  # how often an idle thread checks deadlines and cancellations, in seconds
BACKLOG = 64  # units of a stage that wait; the largest calls have up to 64
LOOK_S = 0.01  # minimum time between two checks of all deadlines, in seconds
MAX_PASSED_S = 1.0  # of one step that counts as waiting for text; a longer step is not caused by a client
TEXT_WAIT_S = 5.0  # how long an utterance keeps its slot without text while other requests wait for a slot


class Follow(NamedTuple):
    """Work for a request to be done after the lock is released."""

    request: Request
    work: Callable[[], None]


class Pipeline:
    """The chain of stages of a model family: moves utterances from stage to stage, and ends requests.

    It does no input or output and never waits. The caller must hold the scheduler's lock.
    """

    def __init__(
        self,
        stages: list[StageQueue],
        ledger: RequestTracker,
        line: WaitingLine,
        *,
        wake: Callable[[int], None],
        on_end: Callable[[], None],
        extend: Callable[[Request, list[Utterance]], None],
        clock: Callable[[], float],
    ) -> None:
        """`wake` is called with the index of a stage that has work, `extend` with further utterances of a request."""
        self.stages, self.ledger, self._line = stages, ledger, line
        self._wake, self._on_end, self._extend, self._clock = wake, on_end, extend, clock
        self._follows: list[Follow] = []
        # The metrics count the items and the batch sizes of this stage: the last autoregressive stage.
        self.counted = max((stage.index for stage in stages if stage.policy.is_autoregressive), default=0)

    def is_behind(self, stage: int) -> bool:
        """Whether so much work waits for the next stage that this stage should begin nothing (back-pressure)."""
        return self._num_over(stage) >= self.stages[stage].slots.num_free

    @property
    def num_free(self) -> int:
        """Number of slots of the first stage that waiting utterances may take."""
        queue = self.stages[0]
        if self._line.is_empty:
            return 0
        free = queue.slots.num_free - sum(sequence.slot is None for sequence in queue.ready)
        return max(0, free if self.is_behind(0) else free - self._num_over(0))

    def _num_over(self, stage: int) -> int:
        """Return how many slots of a stage stay free because of the work that waits for the next stage.

        None up to half as many waiting utterances as the stage has slots, then one more for each. If all were free or
        none, the number of rows would swing, and calls with few rows cost more per row.
        """
        if stage + 1 == len(self.stages):
            return 0
        return max(0, self.stages[stage + 1].num_waiting - self.stages[stage].slots.count // 2)

    def end_idle(self, passed_s: float) -> None:
        """End utterances that wait too long for text, if other requests wait for their slots.

        `passed_s` are the seconds since the last call. Speech makes up for earlier waiting, so that a text which
        arrives word by word keeps its slot only if its words arrive almost as fast as they are spoken.
        """
        queue, most = self.stages[0], len(self._line)
        if not most or queue.slots.num_free:
            return
        waiting = [each.utterance for each in queue.running if each.waits_for_text]
        for utterance in waiting:
            utterance.waited_s += min(passed_s, MAX_PASSED_S)
        for utterance in sorted(waiting, key=lambda each: -each.waited_s)[:most]:
            if utterance.waited_s > TEXT_WAIT_S:
                reason = f"no text arrived for {TEXT_WAIT_S:g} s while other requests waited; send the text faster"
                self.end(utterance.request, TextIdleError(reason))

    def has_work(self, stage: int, now: float) -> bool:
        if self.stages[stage].has_work(holds_back=stage > 0 and self.is_behind(stage)):
            return True
        held_back = self.line_wakes(now) if stage == 0 else None
        return held_back is not None and held_back <= 0

    def line_wakes(self, now: float) -> float | None:
        """Return the seconds until `admit` will admit an utterance; None if it will not."""
        free = self.num_free
        return self._line.wakes(now, free, is_behind=self.is_behind(0)) if free else None

    def admit(self, now: float) -> None:
        """Admit waiting utterances to the first stage, at most as many as it has free slots."""
        for utterance in self._line.take(self.num_free, now, is_behind=self.is_behind(0)):
            self._build_later(utterance.request)
            _choose_profile(utterance, self.stages[0], self.stages[-1].policy.loaded_profile, now)
            utterance.begin([stage.policy.output for stage in self.stages])
            self.ledger.count_admitted(utterance.request, now)
            if utterance.source is not None:
                utterance.sequences[0].slot = self.stages[0].slots.allocate()
                utterance.source.fetch(utterance)
            self._feed(utterance.sequences[0], utterance.num_given, is_final=utterance.has_arrived)

    def arrive(
        self, utterance: Utterance, items: np.ndarray, *, is_final: bool, made: Sequence[np.ndarray] | None
    ) -> list[Follow]:
        assert utterance.arriving is not None
        utterance.arriving.extend(items)
        utterance.has_arrived |= is_final
        if utterance.sequences and not utterance.request.has_ended:
            if made is not None:
                self._continue(utterance, made)
            self._feed(utterance.sequences[0], len(items), is_final=is_final)
        return self._take_follows()

    def report(self, plan: Plan, report: Report) -> list[Follow]:
        queue = self.stages[plan.stage]
        flight = queue.in_flight.pop(plan.number)
        self.ledger.metrics.count_stage(queue.policy.name, len(plan.steps) - len(report.skipped), report.seconds)
        for sequence in flight.begun:
            self.ledger.count_begun(sequence.request, sequence.slot, self._clock())
        for part in plan.prefills:
            if part.key:
                queue.keep(part.key, report.saved.get(part.key))
        for slot, error in report.errors.items():
            sequence, units = flight.owners[slot]
            if sequence.units == units:  # otherwise the step was launched before its unit's end was known
                self.end(sequence.request, error)
        self._take_steps(queue, plan, report, flight.owners)
        for sequence, _ in flight.owners.values():
            if sequence.request.has_ended and not queue.policy.is_autoregressive:
                queue.release(sequence)
        return self._take_follows()

    def _take_follows(self) -> list[Follow]:
        follows, self._follows = self._follows, []
        return follows

    def _take_steps(self, queue: StageQueue, plan: Plan, report: Report, owners: Owners) -> None:
        result, num_items = report.result, 0
        if result is None:
            return
        for row, slot in enumerate(plan.steps):
            sequence, units = owners[slot]
            if sequence.units != units or sequence.request.has_ended:
                continue  # the step was launched before the end of its unit or request was known
            if slot in report.skipped:
                sequence.num_launched -= 1
            elif not result.valid[row]:
                error = GenerationError(f"{queue.policy.not_finite} (item {sequence.produced})")
                self.end(sequence.request, error)
            else:
                num_items += result.counts[row]
                self._take(queue, sequence, result, row)
        if queue.index == self.counted:
            self.ledger.metrics.rows.observe(len(plan.steps))
            self.ledger.metrics.frames += num_items

    def _take(self, queue: StageQueue, sequence: StageSequence, result: StepResult, row: int) -> None:
        unit, count, is_over = sequence.unit, result.counts[row], result.stops[row]
        assert unit is not None
        sequence.num_steps += 1
        if count:
            sequence.produced += count
            if sequence.utterance.waited_s and sequence.stage == 0 and (rate := queue.policy.output.rate):
                sequence.utterance.waited_s = max(0.0, sequence.utterance.waited_s - count / rate)
            if (scores := result.scores.get(sequence.slot)) is not None:
                sequence.add_scores(scores, count)
            # An autoregressive stage may take its own last items as input.
            if not queue.is_last or queue.policy.is_autoregressive:
                items = result.values[row]
                sequence.items.extend(items if len(items) == count else items[:count])
            if not queue.is_last:
                following = sequence.utterance.sequences[queue.index + 1]
                following.available += count
                if following.available >= following.asks_at:
                    self._consider(following)
        if is_over or sequence.num_steps == unit.steps:
            sequence.utterance.was_cut |= queue.policy.stops and not is_over
            sequence.request.was_cut |= sequence.utterance.was_cut
            self._end_unit(queue, sequence)

    def _end_unit(self, queue: StageQueue, sequence: StageSequence) -> None:
        unit = sequence.unit
        assert unit is not None
        queue.running.remove(sequence)
        sequence.consumed += unit.consumes
        sequence.units += 1
        sequence.unit = None
        sequence.asks_at = 0
        if queue.policy.holds == "unit":
            queue.release(sequence)
        self._consider(sequence)

    def _feed(self, sequence: StageSequence, count: int, *, is_final: bool = False) -> None:
        sequence.available += count
        sequence.is_final |= is_final
        self._consider(sequence)

    def _consider(self, sequence: StageSequence) -> None:
        """If a sequence has no unit, queue its next unit, or finish the sequence if no unit follows."""
        if sequence.unit is not None or sequence.next_unit is not None or sequence.is_done:
            return
        queue, utterance, progress = self.stages[sequence.stage], sequence.utterance, sequence.progress
        if sequence.is_final and queue.policy.is_done(progress):
            sequence.is_done = True
            queue.release(sequence)
            if not queue.index:
                utterance.release_prompt()
                self._line.charge(utterance.request, sequence.produced)
            if queue.is_last:
                self._end_utterance(utterance)
            else:
                if sequence.stage + 2 == len(self.stages):
                    self._continue(utterance, [each.items.cut(0, each.produced) for each in utterance.sequences[:-1]])
                self._feed(utterance.sequences[sequence.stage + 1], 0, is_final=True)
        else:
            sequence.next_unit = queue.policy.next_unit(progress)
            if sequence.next_unit is None:
                sequence.asks_at = queue.policy.asks_at(progress)
            else:
                sequence.asks_at = NEVER  # until the unit is finished
                queue.ready.append(sequence)
                self._wake(queue.index)

    def _continue(self, utterance: Utterance, made: Sequence[np.ndarray]) -> None:
        """If later utterances wait for the voice of this one, set the voice, then build them.

        `made` is what the stages before the last have generated.
        """
        request = utterance.request
        set_voice, utterance.set_voice = utterance.set_voice, None
        if set_voice is not None:
            request.awaits_voice = False
            self._build_later(request, partial(set_voice, made))

    def _build_later(self, request: Request, prepare: Callable[[], None] | None = None) -> None:
        """Once the lock is released, `prepare` will be called and a request's next utterances will be built."""
        ahead = self.stages[0].policy.ahead - len(request.utterances)
        builds = request.take_later(min(MAX_QUEUED - self._line.num_waiting(request), ahead))
        request.is_building |= prepare is not None  # the utterances built next need the result

        def work() -> None:
            if not request.has_ended:
                if prepare is not None:
                    prepare()
                self._extend(request, [later.build() for later in builds])

        if builds or prepare is not None:
            self._follows.append(Follow(request, work))

    def _end_utterance(self, utterance: Utterance) -> None:
        """Continue with the request's next utterance, or end the request after its last utterance."""
        request, now = utterance.request, self._clock()
        request.front += 1
        request.utterances.remove(utterance)
        self._line.end(request)
        request.num_finished += utterance.sequences[self.counted].produced
        utterance.sequences = []  # they refer to the utterance
        if request.has_more:
            request.speech.end_utterance(now, was_cut=utterance.was_cut, ends_part=utterance.place.ends_part)
            self._build_later(request)
            self._wake(len(self.stages) - 1)
        else:
            request.speech.finish(request.finish_reason, now, request.timing, was_cut=utterance.was_cut)
            self.end(request)

    def end(self, request: Request, error: S1MiniError | None = None, *, reason: str = "spoken") -> None:
        """Release everything that a request holds and notify its consumer. Does nothing if the request has ended."""
        if request.has_ended:
            return
        request.has_ended, num_items = True, self.num_items(request)
        try:
            self._line.remove(request)
            for utterance in request.utterances:
                if utterance.source is not None:
                    utterance.source.forget(utterance)
                for sequence in utterance.sequences:
                    self.stages[sequence.stage].drop(sequence)
                if utterance.sequences:
                    self._line.end(request)
                    if not utterance.sequences[0].is_done:
                        self._line.charge(request, utterance.sequences[0].produced)
        finally:
            self.ledger.end(request, error, reason, self._clock(), num_items)
            request.release()
            self._on_end()

    def num_items(self, request: Request) -> int:
        """Return how many items a request has generated, such as frames."""
        begun = [each.sequences[self.counted] for each in request.utterances if each.sequences]
        return request.num_finished + sum(sequence.produced for sequence in begun)


def _choose_profile(utterance: Utterance, first: StageQueue, loaded: ChunkProfile | None, now: float) -> None:
    rows = first.slots.count - first.slots.num_free + len(first.ready)
    if utterance.request.adapts and loaded is not None and begins_longer(rows, now - utterance.due):
        utterance.request.profile = loaded


class Scheduler:
    """Decides what each stage does next.

    `threads` lists, for each thread, the indices of its stages; one thread may have no stages.
    """

    def __init__(
        self,
        policies: Sequence[StagePolicy],
        line: WaitingLine,
        prefixes: ByteCache[Saved],
        *,
        threads: Sequence[Sequence[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        last = len(policies) - 1
        self.stages = [StageQueue(i, policy, prefixes, is_last=i == last) for i, policy in enumerate(policies)]
        self.line, self.prefixes, self.clock = line, prefixes, clock
        line.shares = SlotShares(policies[0].slots)
        self.ledger = RequestTracker()
        threads = [list(range(len(policies)))] if threads is None else threads
        # Only if the first and the last stage share a thread can prefill delay audio.
        self._puts_off = any(0 in stages and last in stages for stages in threads)
        self._lock = threading.Lock()
        changed = [threading.Condition(self._lock) for _ in threads]
        self._changed = {stage: changed[thread] for thread, stages in enumerate(threads) for stage in stages or [NONE]}
        self._closed, self._drains = threading.Event(), True
        self._cancelled: deque[Request] = deque()
        self._pipeline = Pipeline(
            self.stages, self.ledger, line, wake=self._wake, on_end=self._wake_all, extend=self.extend, clock=clock
        )
        self._last_look = self._next_look = clock()  # times of the last and the next check of all deadlines

    # ---- called by the engine ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Accept a request that `open` will queue, unless it ends before. Never waits for the lock.

        A request after `close` ends with `EngineNotReadyError`.
        """
        request.speech.queue.on_take = self._look_again
        self.ledger.add(request)
        if self._closed.is_set():  # `close` and `tell_all` may have missed this request
            request.has_ended = True
            error = EngineNotReadyError("the engine is shutting down and no longer accepts requests")
            self.ledger.tell_end(request, error, self.clock())

    def open(self, request: Request, utterances: list[Utterance]) -> None:
        """Queue the utterances of a submitted request; a request without any ends. Raises `QueueFullError`."""
        with self._lock:
            if request.has_ended:
                request.release()
                return
            now = request.arrived = request.queued = self.clock()
            if utterances:
                request.utterances = utterances
                self.line.submit(request)
            request.speech.queue.accept()
            if not utterances:
                request.speech.finish("stop", now, request.timing)
                self._pipeline.end(request)
            self._wake(0)

    def refuse(self, request: Request, error: BaseException) -> None:
        """End a request that cannot be queued. It is not counted in the metrics."""
        with self._lock:
            if not request.has_ended:
                request.has_ended = True
                self.ledger.tell_end(request, error, self.clock())
                request.release()
                self._wake_all()

    def cancel(self, request: Request) -> None:
        """Ask the stage threads to cancel a request. Does nothing if the request has ended.

        This never waits for the lock, because the garbage collector may call it in any thread, even in a thread that
        holds the lock.
        """
        self._cancelled.append(request)
        self._look_again()

    def _look_again(self) -> None:
        """Wake all threads. If another thread holds the lock, they look again by themselves within `POLL_S`."""
        if self._lock.acquire(blocking=False):
            self._wake_all()
            self._lock.release()

    def close(self, *, drains: bool) -> None:
        """Accept no further requests. If `drains`, finish the accepted requests, otherwise stop planning at once."""
        with self._lock:
            self._drains = drains
            self._closed.set()
            for request in self.ledger.all():
                request.speech.window_s = inf  # never pause: the caller, which waits for the end, may be the consumer
            self._wake_all()

    def end_all(self, error: S1MiniError) -> None:
        with self._lock:
            for request in self.ledger.all():
                try:
                    self._pipeline.end(request, error)
                except Exception:  # `end` has notified this consumer; the other consumers must still be notified
                    logger.exception("failed to end a request")

    def tell_all(self, error: S1MiniError) -> None:
        """Accept no further requests and notify all consumers of an error, even if a hanging thread holds the lock."""
        self._drains = False
        self._closed.set()
        held = self._lock.acquire(timeout=LOOK_S)
        try:
            for request in self.ledger.all():
                self.ledger.tell_end(request, error, self.clock())
        finally:
            if held:
                self._lock.release()

    # ---- called by stage threads ------------------------------------------------------------------------------------

    def wait(self, stages: Sequence[int], has_other_work: Callable[[], bool] = lambda: False) -> bool:
        """Wait for work at the stages of one thread; return False when the thread should end."""
        changed = self._changed[stages[0] if stages else NONE]
        with self._lock:
            while True:
                now = self.clock()
                self._end_unwanted(now)
                if self._closed.is_set() and (not self._drains or not (self.ledger or has_other_work())):
                    self._wake_all()
                    return False
                if has_other_work() or any(self._pipeline.has_work(stage, now) for stage in stages):
                    return True
                wakes = self._pipeline.line_wakes(now) if 0 in stages else None
                changed.wait(min(POLL_S, wakes) if wakes else POLL_S)

    def wake(self, stage: int) -> None:
        with self._lock:
            self._wake(stage)

    def plan(self, stage: int, *, only_first: bool = False) -> Plan | None:
        """Return a stage's next plan, or None if it has no work.

        With `only_first`, the plan has only small units that produce the first audio of a request.
        """
        with self._lock:
            now, queue = self.clock(), self.stages[stage]
            self._end_unwanted(now)
            if stage == 0:
                self._pipeline.admit(now)
            if self._closed.is_set() and not self._drains:
                return None
            holds_back = stage > 0 and self._pipeline.is_behind(stage)
            runs_dry = self._puts_off and self.stages[-1].priority.somebody_runs_dry
            puts_off = stage == 0 and queue.puts_off(runs_dry=runs_dry)
            plan = queue.plan(now, only_first=only_first, holds_back=holds_back, puts_off=puts_off)
            return None if plan.is_empty else plan

    def deliver(self, plan: Plan, report: Report) -> None:
        """Send the audio of a plan of the last stage; called before `report`, without the lock."""
        result, now = report.result, self.clock()
        if result is None:
            return
        owners = self.stages[plan.stage].in_flight[plan.number].owners
        for row, slot in enumerate(plan.steps):
            sequence, units = owners[slot]
            unit = sequence.unit if sequence.units == units else None  # None if the unit has ended since the launch
            is_good = slot not in report.errors and slot not in report.skipped and result.valid[row]
            if is_good and unit is not None and not sequence.request.has_ended:
                wave, before = result.values[row][: result.counts[row]], sequence.before
                scores = None
                if before is not None and before.scores is not None:
                    scores = before.scores.cut(sequence.consumed, sequence.consumed + unit.consumes)
                sequence.request.speech.push(wave, unit.consumes, now, scores)

    def report(self, plan: Plan, report: Report) -> list[Follow]:
        """Process the report of a plan; return work that the caller must do without the lock."""
        with self._lock:
            follows = self._pipeline.report(plan, report)
            self._wake(plan.stage)
            if plan.stage:
                self._wake(plan.stage - 1)  # the previous stage may have waited because of back-pressure
            return follows

    def extend(self, request: Request, utterances: list[Utterance]) -> None:
        with self._lock:
            request.is_building = False
            if not request.has_ended:
                request.utterances += utterances
                self.line.extend(request, utterances)
                self._wake(0)

    def arrive(
        self, utterance: Utterance, items: np.ndarray, *, is_final: bool, made: Sequence[np.ndarray] | None = None
    ) -> list[Follow]:
        """Add input of an utterance that another process generates; return work to be done without the lock.

        `made` is what the stages before the last have generated for the utterance, once it is complete.
        """
        with self._lock:
            return self._pipeline.arrive(utterance, items, is_final=is_final, made=made)

    def open_stream(self, utterance: Utterance, prompt: PromptTokens, max_steps: int) -> None:
        """Queue the only utterance of a request whose text is still being written. Raises `QueueFullError`."""
        utterance.prompt, utterance.max_steps, utterance.num_texts = prompt, max_steps, prompt.num_after
        self.open(utterance.request, [utterance])

    def feed(self, utterance: Utterance, tokens: np.ndarray, *, is_last: bool) -> None:
        """Add the text tokens [n] that an opened utterance's further steps read. The request's deadline restarts."""
        with self._lock:
            utterance.num_texts += len(tokens)
            if len(tokens):
                utterance.new_texts.append(tokens)
            utterance.is_open = not is_last
            utterance.request.deadline = self.clock() + utterance.request.allowed_s
            self._wake(0)

    def end(self, request: Request, error: S1MiniError) -> None:
        with self._lock:
            self._pipeline.end(request, error)

    def has_backlog(self, stage: int) -> bool:
        """Whether at least `BACKLOG` units of a stage wait for a call."""
        with self._lock:
            queue = self.stages[stage]
            return len(queue.ready) >= BACKLOG and sum(map(queue.can_begin, queue.ready)) >= BACKLOG

    def may_help(self, stage: int) -> bool:
        """Whether the first stage's thread may work for this stage, whose thread is busy: only if no prompt waits."""
        return bool(self.stages[stage].in_flight) and not (self.stages[0].in_prefill or self.stages[0].ready)

    @property
    def has_speech(self) -> bool:
        """Whether an autoregressive stage has a sequence that does not wait for text."""
        queues = [queue for queue in self.stages if queue.policy.is_autoregressive]
        return any(queue.in_prefill or any(each.can_step for each in queue.running) for queue in queues)

    # ---- with the lock held -----------------------------------------------------------------------------------------

    def _end_unwanted(self, now: float) -> None:
        while self._cancelled:
            request = self._cancelled.popleft()
            if not request.has_ended:
                request.speech.finish("cancelled", now, request.timing)
                self._pipeline.end(request, reason="cancelled")
        if now < self._next_look:
            return
        self._pipeline.end_idle(now - self._last_look)
        self._last_look, self._next_look = now, now + LOOK_S
        for request in self.ledger.late(now):
            frames, is_queued = self._pipeline.num_items(request), request.utterances or request.front
            reason = f"after {frames} frames" if is_queued else "before its text and voice were prepared"
            self._pipeline.end(request, RequestTimeoutError(f"timed out {reason}"))

    def _wake(self, stage: int) -> None:
        self._changed[stage].notify_all()

    def _wake_all(self) -> None:
        for changed in set(self._changed.values()):
            changed.notify_all()
