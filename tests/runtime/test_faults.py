"""What goes wrong beside the model, or slowly, harms nobody else and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from s1_mini.config import EngineConfig
from s1_mini.exceptions import CapacityError, EngineError, EngineNotReadyError, QueueFullError
from s1_mini.runtime.generator import Generator
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.model_runner import ModelRunner
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import SamplingParams

SLOTS = 4


def start(speaker: Speaker, **settings: Any) -> Generator:
    values = {"device": "cpu", "max_batch_size": SLOTS, "max_columns": 512, "max_queue_size": 1000} | settings
    return Generator(speaker, EngineConfig(**values))


def ask(generator: Generator, seed: int = 1, frames: int = 12, **options: Any) -> Outbox:
    options = {"deadline": float("inf")} | options
    sampling = SamplingParams(seed=seed, max_new_tokens=frames)
    return generator.speak(options.pop("pieces", ["Hello."]), (), sampling, **options)


def sound(outbox: Outbox) -> np.ndarray:
    return np.concatenate([chunk.audio for chunk in outbox])


def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


def test_a_device_that_is_gone_ends_every_request_with_an_error(speaker: Speaker) -> None:
    generator = start(speaker)

    def fail(*_: Any) -> None:
        raise RuntimeError("the device is gone")

    outboxes = [ask(generator, frames=300) for _ in range(6)]
    runner = generator.worker.runner
    runner.release = runner.step = runner.step_alone = fail  # type: ignore[method-assign,assignment]

    until(lambda: all(outbox.has_ended for outbox in outboxes))
    assert not generator.worker.is_alive


def test_a_lost_device_kills_the_engine_and_is_not_taken_for_a_bad_request(speaker: Speaker) -> None:
    generator = start(speaker)

    def fail(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    generator.worker.runner.step = fail  # type: ignore[method-assign,assignment]

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(ask(generator))
    until(lambda: not generator.worker.is_alive)


@pytest.mark.parametrize(("what", "who"), [("step", "engine's thread"), ("decode", "makes sound")])
def test_a_device_that_hangs_is_an_error_to_all_and_is_noticed(
    what: str, who: str, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "decode":
        monkeypatch.setattr("s1_mini.runtime.model_runner._num_cores", lambda: 2)  # so that sound has a thread
    generator = start(speaker, stuck_after_s=1.0)
    woken = threading.Event()
    do = getattr(generator.worker.runner, what)

    def hang(*arguments: Any) -> Any:
        if what == "step" or threading.current_thread() is generator.worker.sound._thread:
            woken.wait()
        return do(*arguments)

    def work() -> Iterator[None]:
        while True:
            yield

    setattr(generator.worker.runner, what, hang)
    outboxes = [ask(generator, frames=30) for _ in range(2 * SLOTS)]
    task = generator.worker.do(work)  # type: ignore[arg-type]

    for outbox in outboxes:
        with pytest.raises(EngineNotReadyError, match="has died"):
            sound(outbox)
    assert not generator.worker.is_alive
    assert who in str(generator.worker.failure)
    with pytest.raises(EngineError, match="has not come back"):
        ask(generator)
    generator.close()  # does not wait for it
    with pytest.raises(EngineNotReadyError, match="has died"):
        task.result(timeout=1)

    woken.set()  # a thread that comes back after all ends by itself
    until(lambda: not any(thread in threading.enumerate() for thread in threads_of(generator)))


def test_a_request_whose_end_hangs_hears_of_it(speaker: Speaker) -> None:
    generator = start(speaker, stuck_after_s=1.0)
    woken = threading.Event()
    generator.worker.runner.release = lambda _: woken.wait()  # type: ignore[method-assign,assignment,return-value]
    outbox = ask(generator, frames=400, deadline=time.monotonic() + 0.2)

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(outbox)

    woken.set()


def test_a_stop_that_hangs_comes_back(speaker: Speaker) -> None:
    generator = start(speaker, stuck_after_s=1.0)
    woken = threading.Event()
    outbox = ask(generator, frames=400)
    until(lambda: bool(generator.worker.scheduler.running))
    generator.worker.runner.release = lambda _: woken.wait()  # type: ignore[method-assign,assignment,return-value]

    generator.close(drains=False)

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(outbox)
    woken.set()


def test_an_engine_that_dies_while_its_sound_hangs_tells_all(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s1_mini.runtime.model_runner._num_cores", lambda: 2)  # so that sound has a thread
    generator = start(speaker, stuck_after_s=1.0)
    woken, hangs = threading.Event(), threading.Event()
    do = generator.worker.runner.decode

    def hang(*arguments: Any) -> Any:
        if threading.current_thread() is generator.worker.sound._thread:
            hangs.set()
            woken.wait()
        return do(*arguments)

    def die(*_: Any) -> None:
        raise SystemError("the bookkeeping is broken")

    generator.worker.runner.decode = hang  # type: ignore[method-assign]
    outbox = ask(generator, frames=400)
    assert hangs.wait(10.0)
    generator.worker.scheduler.reads = die  # type: ignore[method-assign,assignment]

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(outbox)
    assert "bookkeeping" in str(generator.worker.failure)
    generator.close()
    woken.set()


def threads_of(generator: Generator) -> list[threading.Thread]:
    own = (generator.worker._thread, generator.worker.sound._thread)
    return [thread for thread in own if thread is not None]


def test_a_codec_slower_than_the_model_fills_the_queue_and_no_hidden_one(speaker: Speaker) -> None:
    generator = start(speaker, max_queue_size=8)
    runner, plain = generator.worker.runner, generator.worker.runner.decode
    runner.decode = lambda *given: (time.sleep(0.05), plain(*given))[1]  # type: ignore[method-assign,assignment]
    accepted, refused = [], 0
    for _ in range(60):
        try:
            accepted.append(ask(generator, frames=6, profile="throughput", streams=False))
        except QueueFullError:
            refused += 1
        time.sleep(0.01)

    assert refused > 20
    assert generator.worker.num_jobs <= 8 + 3 * SLOTS
    for outbox in accepted:
        assert len(sound(outbox)) == 6 * 2048
    generator.close()


@pytest.mark.parametrize("profile", ["ttfa", "balanced"])
def test_sound_made_by_the_engines_own_thread_keeps_up_with_many_streams(speaker: Speaker, profile: str) -> None:
    plain = start(speaker)
    alone = {seed: sound(ask(plain, seed, 60, profile=profile)) for seed in range(4)}
    generator = start_alone(speaker, max_batch_size=16)
    outboxes = [ask(generator, seed % 4, 60, profile=profile) for seed in range(32)]

    left = 0
    while not all(outbox.has_ended for outbox in outboxes):
        waiting = [len(p.frames) - p.num_decoded for job in generator.worker.scheduler.speaking for p in job.pieces]
        left = max(left, sum(waiting))
        time.sleep(0.002)

    assert all(np.array_equal(sound(outbox), alone[seed % 4]) for seed, outbox in enumerate(outboxes))
    assert left < 16 * 60  # not all of a batch waits at once
    for each in (plain, generator):
        each.close()


def start_alone(speaker: Speaker, **settings: Any) -> Generator:
    """A generator whose one thread makes the sound too, as on a GPU."""
    plain = ModelRunner.__init__

    def without(self: ModelRunner, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        self.sounds_beside = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelRunner, "__init__", without)
        return start(speaker, **settings)


def test_a_chunk_that_is_made_again_is_made_once(speaker: Speaker) -> None:
    plain = start(speaker)
    expected = {seed: sound(ask(plain, seed, 60, profile="ttfa")) for seed in range(6)}
    generator = start(speaker)
    runner, decode = generator.worker.runner, generator.worker.runner.decode
    calls = [0]

    def run_out(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] % 7 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
        return decode(*given)

    runner.decode = run_out  # type: ignore[method-assign,assignment]
    outboxes = [ask(generator, seed, 60, profile="ttfa") for seed in range(6)]

    assert all(np.array_equal(sound(outbox), expected[seed]) for seed, outbox in enumerate(outboxes))
    assert calls[0] > 20
    generator.close()
    assert list(generator.worker.audit()) == []
    plain.close()


def test_pieces_follow_each_other_in_order_however_slowly_the_engine_turns(speaker: Speaker) -> None:
    texts = ["One.", "Two.", "Three."]
    plain = start(speaker)
    expected = sound(ask(plain, 3, 20, pieces=texts))
    generator = start(speaker)
    maker = generator.worker.sound
    end_piece = maker.end_piece
    maker.end_piece = lambda job: (time.sleep(0.03), end_piece(job))[1]  # type: ignore[method-assign,assignment]

    assert np.array_equal(sound(ask(generator, 3, 20, pieces=texts)), expected)
    for each in (plain, generator):
        each.close()


def test_memory_that_runs_out_while_encoding_is_tried_again_and_else_a_capacity_error(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = start(speaker)
    codec = speaker.loaded.encoding_codec()
    wave = torch.randn(44_100, generator=torch.Generator().manual_seed(1)) / 10
    expected, plain, times = generator.encode(wave)["codes"], codec.encode_by_blocks, [1]

    def run_out(given: torch.Tensor) -> Any:
        if times[0]:
            times[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
        return (yield from plain(given))

    monkeypatch.setattr(codec, "encode_by_blocks", run_out)

    assert torch.equal(generator.encode(wave)["codes"], expected)
    times[0] = 2
    with pytest.raises(CapacityError, match="out of memory"):
        generator.encode(wave)
    assert len(sound(ask(generator))) > 0
    generator.close()


def test_a_start_that_fails_leaves_no_thread_behind(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(ModelRunner, "step", fail)
    monkeypatch.setattr(ModelRunner, "step_alone", fail)

    with pytest.raises(Exception, match="failed on this request"):
        start(speaker)

    assert {thread for thread in threading.enumerate() if thread.is_alive()} <= before
