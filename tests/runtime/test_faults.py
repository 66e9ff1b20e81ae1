"""Faults and delays outside the model affect no other request and leak nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from leaks import leaks
from s1_mini.exceptions import CapacityError, EngineError, EngineNotReadyError, GenerationError, QueueFullError
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.synthesizer import Synthesizer
from tests.runtime.conftest import ask, sound, start
from waiting import EVENTUALLY_S, wait_until

SLOTS = 4


@pytest.fixture(autouse=True)
def _no_wait_for_hanging_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s1_mini.runtime.engine_core.JOIN_S", 0.01)


@pytest.mark.parametrize("what", ["begin", "prefill", "step", "decode"])
def test_a_lost_device_stops_the_engine_and_is_not_reported_as_a_bad_request(
    what: str, speaker: LoadedCheckpoint
) -> None:
    synthesizer = start(speaker)

    def fail(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    patch(synthesizer, what, fail)

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(ask(synthesizer))
    wait_until(lambda: not synthesizer.core.is_alive)


def test_a_model_that_fails_for_all_fails_each_request(speaker: LoadedCheckpoint) -> None:
    synthesizer = start(speaker)

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    patch(synthesizer, "step", fail)
    queues = [ask(synthesizer, frames=300) for _ in range(6)]

    for queue in queues:
        with pytest.raises(GenerationError, match="RuntimeError: no"):
            sound(queue)
    assert synthesizer.core.is_alive
    synthesizer.close()
    assert leaks(synthesizer.core.scheduler) == []


@pytest.mark.parametrize(
    ("what", "who"), [("begin", "model thread"), ("step", "model thread"), ("decode", "codec thread")]
)
def test_a_hanging_device_fails_all_requests_and_is_detected(
    what: str, who: str, speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.runtime.synthesizer.num_cores", lambda: 2)  # so that audio has its own thread
    synthesizer = start(speaker, stuck_after_s=1.0)
    woken = threading.Event()
    hang_in(synthesizer, what, woken)

    def work() -> Iterator[None]:
        while True:
            yield

    queues = [ask(synthesizer, frames=30) for _ in range(2 * SLOTS)]
    task = synthesizer.core.do(work)  # type: ignore[arg-type]

    for queue in queues:
        with pytest.raises(EngineNotReadyError, match="has died"):
            sound(queue)
    assert not synthesizer.core.is_alive
    assert who in str(synthesizer.core.failure)
    with pytest.raises(EngineError, match="has been stuck"):
        ask(synthesizer)
    synthesizer.close()  # does not wait for it
    with pytest.raises(EngineNotReadyError, match="has died"):
        task.result(timeout=EVENTUALLY_S)

    woken.set()  # a thread that returns after all ends by itself
    wait_until(lambda: not any(worker.thread.is_alive() for worker in synthesizer.core.workers))


def test_stop_returns_although_the_device_hangs(speaker: LoadedCheckpoint) -> None:
    synthesizer = start(speaker, stuck_after_s=1.0)
    woken = threading.Event()
    hangs = hang_in(synthesizer, "step", woken)
    queue = ask(synthesizer, frames=400)
    assert hangs.wait(EVENTUALLY_S)

    synthesizer.close(drains=False)

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(queue)
    woken.set()


def test_an_engine_that_dies_while_audio_decoding_hangs_fails_all_requests(
    speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.runtime.synthesizer.num_cores", lambda: 2)  # so that audio has its own thread
    synthesizer = start(speaker, stuck_after_s=60.0)
    woken = threading.Event()
    hangs = hang_in(synthesizer, "decode", woken)

    def die(*_: Any, **__: Any) -> None:
        raise SystemError("the bookkeeping is broken")

    queue = ask(synthesizer, frames=400)
    assert hangs.wait(EVENTUALLY_S)
    synthesizer.core.scheduler.stages[0].plan = die  # type: ignore[method-assign,assignment]
    wait_until(lambda: synthesizer.core.failure)  # before the watchdog reports the hanging decoder
    synthesizer.core._watchdog._on_stuck("codec", 60.0)

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(queue)
    assert "bookkeeping" in str(synthesizer.core.failure)
    synthesizer.close()
    woken.set()


def patch(synthesizer: Synthesizer, what: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a stage's work by `work`; return the calls."""
    model, codec = (runner.stage for runner in synthesizer.core.runners)
    stage, method = (codec, "step") if what == "decode" else (model, what)
    plain: Callable[..., Any] = getattr(stage, method)
    setattr(stage, method, work)
    return plain


def hang_in(synthesizer: Synthesizer, what: str, woken: threading.Event) -> threading.Event:
    """Block a stage's own thread until it is woken; return the event that is set when it blocks."""
    hangs = threading.Event()
    own = synthesizer.core.workers[-1 if what == "decode" else 0].thread

    def hang(*arguments: Any) -> Any:
        if threading.current_thread() is own:
            hangs.set()
            woken.wait()
        return plain(*arguments)

    plain = patch(synthesizer, what, hang)
    return hangs


def test_a_codec_slower_than_the_model_causes_back_pressure(
    speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.runtime.synthesizer.num_cores", lambda: 2)  # the codec has a thread
    synthesizer = start(speaker, max_queue_size=8)
    released = threading.Event()
    plain = patch(synthesizer, "decode", lambda *given: (released.wait(), plain(*given))[1])
    accepted, refused = [], 0
    for _ in range(60):
        try:
            accepted.append(ask(synthesizer, frames=6, profile="throughput", streams=False))
        except QueueFullError:
            refused += 1
        time.sleep(0.01)  # the model continues; the codec has not decoded anything

    assert refused >= 60 - (8 + 3 * SLOTS)
    assert len(synthesizer.core.ledger) <= 8 + 3 * SLOTS
    released.set()
    for queue in accepted:
        assert len(sound(queue)) == 6 * 2048


def test_audio_decoded_by_the_engines_only_thread_keeps_up_with_many_streams(speaker: LoadedCheckpoint) -> None:
    plain = start(speaker)
    alone = {seed: sound(ask(plain, seed=seed, frames=16, profile="ttfa")) for seed in range(4)}
    synthesizer = start_alone(speaker, max_batch_size=16)
    queues = [ask(synthesizer, seed=seed % 4, frames=16, profile="ttfa") for seed in range(24)]

    left = 0
    while not all(queue.has_ended for queue in queues):
        requests = list(synthesizer.core.scheduler.ledger.requests.values())
        # The engine's thread adds and removes stages.
        utterances = [utterance.sequences.copy() for each in requests for utterance in each.utterances]
        sequences = [stages[1] for stages in utterances if len(stages) == 2]
        left = max(left, sum(sequence.available - sequence.consumed for sequence in sequences))
        time.sleep(0.002)

    assert all(np.array_equal(sound(queue), alone[seed % 4]) for seed, queue in enumerate(queues))
    assert left < 16 * 16  # not all of a batch waits at once


def start_alone(speaker: LoadedCheckpoint, **settings: Any) -> Synthesizer:
    """An engine with a single thread, which also decodes the audio."""
    with pytest.MonkeyPatch.context() as alone:
        alone.setattr("s1_mini.runtime.synthesizer.num_cores", lambda: 1)
        return start(speaker, **settings)


def test_a_retried_chunk_is_delivered_once(speaker: LoadedCheckpoint) -> None:
    plain = start(speaker)
    expected = {seed: sound(ask(plain, seed=seed, frames=30, profile="ttfa")) for seed in range(4)}
    synthesizer = start(speaker)
    calls = [0]

    def run_out(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] % 7 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
        return decode(*given)

    decode = patch(synthesizer, "decode", run_out)
    queues = [ask(synthesizer, seed=seed, frames=30, profile="ttfa") for seed in range(4)]

    assert all(np.array_equal(sound(queue), expected[seed]) for seed, queue in enumerate(queues))
    assert calls[0] > 7
    synthesizer.close()
    assert leaks(synthesizer.core.scheduler) == []


def test_utterances_follow_each_other_in_order_on_a_slow_engine(speaker: LoadedCheckpoint) -> None:
    texts = ["One.", "Two.", "Three."]
    plain = start(speaker)
    expected = sound(ask(plain, *texts, seed=3, frames=20))
    synthesizer = start(speaker)
    scheduler = synthesizer.core.scheduler._pipeline
    plain_end = scheduler._end_utterance
    scheduler._end_utterance = lambda one: (time.sleep(0.03), plain_end(one))[1]  # type: ignore[method-assign,assignment,func-returns-value]

    assert np.array_equal(sound(ask(synthesizer, *texts, seed=3, frames=20)), expected)


def test_out_of_memory_while_encoding_is_retried_and_then_a_capacity_error(
    speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthesizer = start(speaker)
    codec = speaker.loaded.encoding_codec()
    wave = torch.randn(44_100, generator=torch.Generator().manual_seed(1)) / 10
    expected, plain, times = synthesizer.encode(wave), codec.encode_by_blocks, [1]

    def run_out(given: torch.Tensor) -> Any:
        if times[0]:
            times[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
        return (yield from plain(given))

    monkeypatch.setattr(codec, "encode_by_blocks", run_out)

    assert torch.equal(synthesizer.encode(wave)["codes"], expected["codes"])
    times[0] = 2
    with pytest.raises(CapacityError, match="out of memory"):
        synthesizer.encode(wave)
    assert len(sound(ask(synthesizer))) > 0


def test_a_start_that_fails_leaves_no_thread_behind(speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(LanguageModel, "step", fail)

    with pytest.raises(Exception, match="failed on this request"):
        start(speaker)

    assert {thread for thread in threading.enumerate() if thread.is_alive()} <= before
