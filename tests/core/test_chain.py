"""A chain of three stages in any placement: the same output alone, whole or streamed, and nothing left behind."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from leaks import leaks
from s1_mini.byte_cache import ByteCache
from s1_mini.core.messages import Plan, Report, StepResult
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import (
    CapacityError,
    EngineError,
    EngineNotReadyError,
    GenerationError,
    RequestTimeoutError,
    S1MiniError,
)
from s1_mini.runtime.engine_core import EngineCore, Threads
from s1_mini.runtime.stage import Pending
from tests.core.conftest import ONE_THREAD, THREE_THREADS, ask, settle, sound, start
from tests.toy.stages import SAMPLES, Frames, Text, Vocoder, policies
from waiting import EVENTUALLY_S, wait_until

PLACEMENTS = pytest.mark.parametrize("threads", [ONE_THREAD, {"model": (0, 1), "vocoder": (2,)}, THREE_THREADS])


@PLACEMENTS
@pytest.mark.parametrize(("ahead", "backlog"), [(False, 64), (True, 64), (True, 1)])
def test_requests_sound_alike_alone_and_together_wherever_the_stages_are(
    threads: dict, ahead: bool, backlog: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.core.scheduler.BACKLOG", backlog)
    alone, together = start(ONE_THREAD, slots=1), start(threads, slots=4, ahead=ahead)
    asked = [(["One sentence.", "Two."][: 1 + i % 2], i, {"max_steps": 5 + 2 * i, "voice": i / 10}) for i in range(12)]

    expected = [sound(ask(alone, texts, seed, **options)) for texts, seed, options in asked]
    heard = [ask(together, texts, seed, **options) for texts, seed, options in asked]

    for queue, wave in zip(heard, expected, strict=True):
        assert np.array_equal(sound(queue), wave)
    for each in (alone, together):
        each.stop()
        assert leaks(each.scheduler) == []


@pytest.mark.parametrize("profile", ["ttfa", "balanced", "throughput"])
def test_sound_is_the_same_in_chunks_of_any_size(core: EngineCore, profile: str) -> None:
    whole = sound(ask(core, max_steps=21, profile="throughput"))

    chunks = [chunk.audio for chunk in ask(core, max_steps=21, profile=profile)]

    assert np.array_equal(np.concatenate(chunks), whole)
    assert len(whole) % SAMPLES == 0
    assert len(chunks) > 2 or profile == "throughput"


def test_audio_is_delivered_while_the_next_call_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call is planned when the previous one is done: by then another request may be more urgent."""
    *others, last = policies(4)
    vocoder, events = Vocoder(is_overlapped=True), list[str]()
    threads = Threads({"model": (0, 1), "vocoder": (2,)})
    stages = Text(), Frames(), vocoder
    core = EngineCore([*others, replace(last, rows=(1,))], stages, WaitingLine(9), ByteCache(0), threads)
    heard = [ask(core, max_steps=9, profile="throughput", streams=False) for _ in range(2)]
    while len(core.scheduler.stages[2].ready) < len(heard):
        core.workers[0].turn()
    step, plan, deliver = vocoder.step, core.scheduler.plan, core.scheduler.deliver

    def launched(slots: Sequence[int], size: int) -> Pending:
        events.append("launched")
        pending = step(slots, size)
        return lambda: events.append("over") or pending()

    def planned(stage: int) -> Plan | None:
        events.append("chosen")
        return plan(stage)

    def delivered(made: Plan, report: Report) -> None:
        events.append("given out")
        deliver(made, report)

    monkeypatch.setattr(vocoder, "step", launched)
    monkeypatch.setattr(core.scheduler, "plan", planned)
    monkeypatch.setattr(core.scheduler, "deliver", delivered)
    for _ in range(3):
        core.workers[1].turn()

    first, second, end = ["chosen", "launched"], ["over", "chosen", "launched", "given out"], ["over", "chosen"]
    assert events == [*first, *second, *end, "given out"]
    assert all(queue.has_ended for queue in heard)


def test_a_step_of_an_autoregressive_stage_is_launched_while_the_last_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text, events = Text(is_overlapped=True), list[str]()
    stages = text, Frames(), Vocoder()
    core = EngineCore(policies(4), stages, WaitingLine(9), ByteCache(0), Threads({"all": (0, 1, 2)}))
    step = text.step

    def launched(slots: Sequence[int], size: int) -> Pending:
        events.append("launched")
        pending = step(slots, size)
        return lambda: events.append("over") or pending()

    monkeypatch.setattr(text, "step", launched)
    heard = ask(core, max_steps=3, temperature=0.0)
    while not heard.has_ended:
        core.workers[0].turn()

    assert events == ["launched", "launched", "over", "launched", "over", "over"]


def test_seconds_of_a_stage_are_not_counted_twice_where_it_launches_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    text, device = Text(is_overlapped=True), {"free": 0.0}
    core = EngineCore(
        policies(4), (text, Frames(), Vocoder()), WaitingLine(9), ByteCache(0), Threads({"all": (0, 1, 2)})
    )
    step = text.step

    def launched(slots: Sequence[int], size: int) -> Pending:
        pending = step(slots, size)
        over = device["free"] = max(time.perf_counter(), device["free"]) + 0.02
        return lambda: time.sleep(max(0.0, over - time.perf_counter())) or pending()

    monkeypatch.setattr(text, "step", launched)
    began = time.perf_counter()
    heard = ask(core, max_steps=8, temperature=0.0)
    while not heard.has_ended:
        core.workers[0].turn()

    seconds = core.scheduler.ledger.metrics.stage_seconds[policies(4)[0].name]
    assert 8 * 0.02 <= seconds <= time.perf_counter() - began


def test_a_stage_begins_before_the_previous_one_ends(core: EngineCore) -> None:
    queue = ask(core, max_steps=10**6, temperature=0.0)

    listener = iter(queue)
    next(listener)

    assert core.scheduler.stages[0].running


def test_a_shared_prefix_is_prefilled_once(core: EngineCore) -> None:
    text = core.runners[0].stage
    assert isinstance(text, Text)
    shared = "A voice that many share. "
    queues = [ask(core, [f"Text {i}."], shared=shared) for i in range(3)]
    waves = [sound(queue) for queue in queues]

    assert text.num_read == len(shared) + 3 * (len("Text 0.") - 1)
    fresh = start()
    assert all(np.array_equal(wave, sound(ask(fresh, [f"{shared}Text {i}."]))) for i, wave in enumerate(waves))


def test_requests_that_survive_random_faults_sound_the_same_and_nothing_leaks() -> None:
    chance = random.Random(3)
    core, plain = start(slots=6, ahead=True), start(ONE_THREAD, slots=1)
    poison(core)
    asked = []
    for i in range(150):
        options = {
            "max_steps": chance.randrange(3, 40),
            "voice": chance.random(),
            "profile": chance.choice(["ttfa", "balanced"]),
        }
        texts = [f"Bad {i}." if i % 25 == 0 else f"Text {i}.", "And more."][: chance.choice((1, 1, 2))]
        asked.append((ask(core, texts, i, **options), texts, i, options))
        if chance.random() < 0.2:
            queue = asked.pop()[0]
            queue.close()
        time.sleep(chance.expovariate(2000))

    for queue, texts, seed, options in asked:
        if seed % 25 == 0:
            with pytest.raises(GenerationError, match="a bad row"):
                sound(queue)
        else:
            assert np.array_equal(sound(queue), sound(ask(plain, texts, seed, **options)))
    for each in (core, plain):
        each.stop()
        assert leaks(each.scheduler) == []


def test_a_late_step_is_retried_and_changes_nothing() -> None:
    core, plain = start(slots=2), start(ONE_THREAD, slots=1)
    text, calls = core.runners[0].stage, itertools.count()
    step = text.step

    def halting(slots: Sequence[int], size: int) -> Pending:
        """Delay the step of every third requested slot."""
        ready = [slot for slot in slots if next(calls) % 3 == 0]
        made = step(ready, size)()
        rows = {slot: row for row, slot in enumerate(ready)}
        values = [made.values[rows[slot]] if slot in rows else np.zeros(0, np.int64) for slot in slots]
        stops = [slot in rows and made.stops[rows[slot]] for slot in slots]
        result = StepResult(values, [len(v) for v in values], stops, [True] * len(slots), set(slots) - set(ready))
        return lambda: result

    text.step = halting  # type: ignore[method-assign]
    queues = [ask(core, [f"Text {i}."], seed=i) for i in range(5)]

    for i, queue in enumerate(queues):
        assert np.array_equal(sound(queue), sound(ask(plain, [f"Text {i}."], seed=i)))
    settle(core)
    rows = [each.scheduler.ledger.metrics.stage_rows["text"] for each in (core, plain)]
    assert rows[0] == rows[1]


def test_only_remote_stages_are_notified_of_cancelled_work(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = policies(2)
    monkeypatch.setattr("tests.core.conftest.policies", lambda _: (replace(chain[0], is_remote=True), *chain[1:]))
    core, output = start(), []
    for number in (0, 1):
        monkeypatch.setattr(
            core.runners[number].stage, "drop", lambda slots, number=number: output.append((number, slots))
        )
    sound(ask(core))

    left = ask(core, temperature=0.0, max_steps=10**6)
    next(iter(left))
    left.close()

    wait_until(lambda: output)
    settle(core)
    core.stop()
    assert output == [(0, [0])]


def poison(core: EngineCore) -> None:
    """Fail every step with a text that begins with "Bad"."""
    stage = core.runners[0].stage
    plain = stage.step

    def step(slots, size):
        if any(stage.begun[slot].inputs[0, 0] == ord("B") and stage.steps[slot] > 1 for slot in slots):
            raise RuntimeError("a bad row")
        return plain(slots, size)

    stage.step = step


def test_a_deadline_ends_a_request_in_any_stage(core: EngineCore) -> None:
    queue = ask(core, max_steps=10**6, temperature=0.0, deadline=time.monotonic() + 0.1)

    with pytest.raises(RequestTimeoutError, match="timed out"):
        sound(queue)
    settle(core)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_dead_thread_fails_all_requests(stage: int, ahead: bool) -> None:
    core = start(ahead=ahead)

    def die(*_: object) -> None:
        raise SystemError("broken")

    core.runners[stage].prepare = die
    for _ in range(3):
        with pytest.raises(S1MiniError, match=r"has (died|failed)"):  # of accepted or new requests
            sound(ask(core))
    assert not core.is_alive
    with pytest.raises(EngineError, match=r"has failed; restart it: SystemError\('broken'\)"):
        ask(core)


@pytest.mark.parametrize("drains", [True, False])
def test_stop_finishes_accepted_requests_or_ends_them(drains: bool) -> None:
    core = start()
    queues = [ask(core, ["One.", "Two."], max_steps=25) for _ in range(10)]

    core.stop(drains=drains)

    with pytest.raises(EngineNotReadyError, match="no longer accepts requests"):
        sound(ask(core))
    for queue in queues:
        if drains:
            assert len(sound(queue))
        else:
            with pytest.raises(EngineNotReadyError, match="was stopped"):
                sound(queue)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("threads", [ONE_THREAD, THREE_THREADS])
def test_a_stop_at_once_does_not_wait_for_the_last_step(threads: dict, ahead: bool) -> None:
    core = start(threads, ahead=ahead)
    queue = ask(core, max_steps=10**6, temperature=0.0)
    listener = iter(queue)
    next(listener)

    core.stop(drains=False)

    assert core.scheduler.stages[0].policy.slots  # it has returned
    with pytest.raises(EngineNotReadyError, match="was stopped"):
        list(listener)


def test_prefill_is_delayed_for_streams_near_an_underrun_only_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one thread for everything, some stream is always near an underrun; prompts are prefilled all the same."""
    monkeypatch.setattr("s1_mini.core.stage_queue.RESERVE_S", 1e6)
    core = start(ONE_THREAD)
    endless = iter(ask(core, max_steps=10**6, temperature=0.0, profile="ttfa"))
    next(endless)

    assert len(sound(ask(core, ["A long prompt. " * 100], max_steps=10)))


def test_a_stage_without_output_ends_the_utterance() -> None:
    core = start()
    text = core.runners[0].stage
    text.make = lambda *_: (np.zeros(0, np.int64), True)  # type: ignore[method-assign]

    assert len(sound(ask(core, ["One.", "Two."]))) == 0

    settle(core)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_out_of_memory_in_a_batch_fails_one_request_at_most(stage: int) -> None:
    core, plain = start(slots=6), start(ONE_THREAD, slots=1)
    failing = core.runners[stage].stage
    step = failing.step

    def run_out(slots, size):
        if len(slots) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(slots, size)

    failing.step = run_out
    queues = [ask(core, ["Some text."], seed, max_steps=20) for seed in range(6)]

    outcomes = []
    for seed, queue in enumerate(queues):
        try:
            outcomes.append(np.array_equal(sound(queue), sound(ask(plain, ["Some text."], seed, max_steps=20))))
        except CapacityError:
            outcomes.append(None)
    assert False not in outcomes
    assert True in outcomes
    assert stage < 2 or None not in outcomes  # non-autoregressive stages are retried individually
    for each in (core, plain):
        settle(each)
        each.stop()


def test_broken_bookkeeping_fails_all_requests() -> None:
    core = start()
    queues = [ask(core, max_steps=10**6, temperature=0.0) for _ in range(3)]
    listeners = [iter(queue) for queue in queues]
    for listener in listeners:
        next(listener)

    def lose(_: int) -> None:
        raise KeyError("a slot that nobody has")

    core.scheduler.stages[0].slots.free = lose  # type: ignore[method-assign]
    queues[0].close()

    for listener in listeners[1:]:
        with pytest.raises(S1MiniError, match="has died"):
            list(listener)


def test_the_garbage_collector_may_free_an_output_queue_in_any_thread(core: EngineCore) -> None:
    """Even in a thread that holds the scheduler's lock."""
    listener = iter(ask(core, max_steps=10**6, temperature=0.0))
    next(listener)

    with core.scheduler._lock:
        del listener

    settle(core)


def test_an_error_raised_at_synchronisation_fails_its_slots(core: EngineCore) -> None:
    vocoder = core.runners[2].stage
    plain = vocoder.step

    def fail() -> None:
        raise RuntimeError("late")

    vocoder.step = lambda *_: fail  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(GenerationError, match="late"):
        sound(ask(core))
    vocoder.step = plain  # type: ignore[method-assign]
    assert len(sound(ask(core)))


@pytest.mark.parametrize("profile", ["ttfa", "balanced", "throughput"])
def test_every_item_becomes_audio_once(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.toy.stages.FRAMES_A_TOKEN", 1)
    core = start()

    lengths = [len(sound(ask(core, max_steps=steps, temperature=0.0, profile=profile))) for steps in range(1, 44)]

    assert lengths == [steps * SAMPLES for steps in range(1, 44)]


def test_a_thread_without_stages_runs_tasks_while_a_step_of_a_stage_is_stuck() -> None:
    core = start({"all": (0, 1, 2), "tasks": ()})
    task = Future[str]()
    stage = core.runners[0].stage
    step = stage.step

    def waiting(slots: Sequence[int], size: int) -> Any:
        task.result(EVENTUALLY_S)  # of a task that is submitted later
        return step(slots, size)

    def work() -> Iterator[None]:
        yield
        return threading.current_thread().name  # type: ignore[return-value]

    stage.step = waiting  # type: ignore[method-assign]
    queue = ask(core)
    wait_until(lambda: core.workers[0].current_turn is not None)

    task.set_result(core.do(work).result(EVENTUALLY_S))  # type: ignore[arg-type]

    assert task.result() == "s1_mini tasks"
    assert len(sound(queue))
    core.stop()
    assert not any(worker.thread.is_alive() for worker in core.workers)
