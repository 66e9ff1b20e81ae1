"""The engine under load and faults: each request ends once, with the same result as alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from held_generation import SOUNDS, held_generation
from leaks import leaks
from s1_mini.core.output_queue import OutputQueue
from s1_mini.exceptions import CapacityError, GenerationError, QueueFullError, S1MiniError
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.synthesizer import Synthesizer, choose_threads
from s1_mini.voices.reference import Check
from tests.runtime.conftest import ask, random_voice, sound, start
from waiting import EVENTUALLY_S, wait_until


def test_requests_sound_the_same_in_any_batch(synthesizer: Synthesizer) -> None:
    voices = [(), (random_voice(),), (random_voice(40, seed=2),)]
    asked = [{"seed": i, "frames": 5 + 3 * i, "voices": voices[i % 3]} for i in range(6)]
    alone = [sound(ask(synthesizer, f"Text number {i}.", **options)) for i, options in enumerate(asked)]

    together = [ask(synthesizer, f"Text number {i}.", **options) for i, options in enumerate(asked)]

    assert all(np.array_equal(sound(queue), wave) for queue, wave in zip(together, alone, strict=True))


def test_a_cached_voice_sounds_like_one_prefilled_again(speaker: LoadedCheckpoint) -> None:
    voice = random_voice(100)
    fresh, cached = start(speaker, kv_cache_size=0), start(speaker)
    sound(ask(cached, "Something else.", voices=(voice,)))

    assert np.array_equal(sound(ask(cached, voices=(voice,))), sound(ask(fresh, voices=(voice,))))
    assert cached.core.prefixes.stats.hits == 1
    assert fresh.core.prefixes.stats.entries == 0


def test_requests_that_share_a_voice_prefill_it_once(synthesizer: Synthesizer, speaker: LoadedCheckpoint) -> None:
    voice = random_voice(150)
    read: list[int] = []
    model = synthesizer.core.runners[0].stage
    plain = model.prefill
    model.prefill = lambda parts: (read.extend(part.stop - part.start for part in parts), plain(parts))  # type: ignore[method-assign,assignment,return-value,func-returns-value]

    queues = [ask(synthesizer, f"Text {i}.", voices=(voice,)) for i in range(3)]
    for queue in queues:
        sound(queue)

    prompt = speaker.loaded.prompt("Text 0.", [voice])
    rest = len(prompt.items) - 1 - prompt.num_shared
    assert sum(read) == prompt.num_shared + 3 * rest


def test_a_cancelled_request_stops_within_a_frame(synthesizer: Synthesizer) -> None:
    with held_generation(SOUNDS):
        queue = ask(synthesizer, frames=400)
        listener = iter(queue)
        next(listener)

        listener.close()
        wait_until(lambda: not synthesizer.core.ledger)
    assert queue.has_ended
    assert leaks(synthesizer.core.scheduler) == []


def test_the_last_chunk_reports_the_phases_of_the_time_to_first_audio(synthesizer: Synthesizer) -> None:
    started = time.monotonic()
    *before, last = ask(synthesizer)
    took = time.monotonic() - started

    assert before
    assert all(chunk.timing is None for chunk in before)
    assert last.timing is not None
    assert min(last.timing.queue_s, last.timing.prefill_s) >= 0
    assert last.timing.queue_s + last.timing.prefill_s <= last.timing.first_chunk_s <= took


def test_a_request_cancelled_in_the_queue_reports_no_prefill(synthesizer: Synthesizer) -> None:
    with held_generation():
        queues = [ask(synthesizer, frames=400) for _ in range(synthesizer.num_slots + 1)]
        for queue in queues:
            queue.close()

    assert [chunk.timing.prefill_s for chunk in queues[-1] if chunk.timing] == [None]


def test_a_full_queue_refuses_new_requests_and_finishes_accepted_ones(speaker: LoadedCheckpoint) -> None:
    synthesizer = start(speaker, max_queue_size=2, max_batch_size=1)
    queues, refusals = [], []
    with held_generation():
        for i in range(8):
            try:
                queues.append(ask(synthesizer, f"Text {i}.", frames=30))
            except QueueFullError as error:
                refusals.append(error.retry_after_s)

    assert refusals
    assert min(refusals) >= 1
    assert all(len(sound(queue)) for queue in queues)


def test_an_encoding_that_raises_a_timeout_error_ends_with_it(
    synthesizer: Synthesizer, speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wave: torch.Tensor) -> Iterator[None]:
        yield
        raise TimeoutError("the disk does not respond")

    monkeypatch.setattr(speaker.loaded, "condition", fail)

    with pytest.raises(GenerationError, match="TimeoutError: the disk does not respond"):
        synthesizer.encode(torch.zeros(1000), Check(Future()))


def test_a_cancelled_encoding_ends_while_another_is_in_progress(
    synthesizer: Synthesizer, speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released, needed = threading.Event(), threading.Event(), Future[None]()

    def hold(wave: torch.Tensor) -> Iterator[None]:
        begun.set()
        yield
        released.wait(EVENTUALLY_S)

    monkeypatch.setattr(speaker.loaded, "condition", hold)
    synthesizer.core.do(lambda: hold(torch.zeros(0)))
    begun.wait(EVENTUALLY_S)
    threading.Timer(0.05, needed.cancel).start()

    with pytest.raises(CancelledError):
        synthesizer.encode(torch.zeros(1000), Check(needed))
    released.set()


def test_a_request_larger_than_a_slot_is_refused_at_once(synthesizer: Synthesizer) -> None:
    with pytest.raises(CapacityError, match="a slot has 512"):
        ask(synthesizer, voices=(random_voice(600),))


def poison(synthesizer: Synthesizer, error: Exception) -> None:
    """Fail every step with a text that begins with "Bad"."""
    stage = synthesizer.core.runners[0].stage
    assert isinstance(stage, LanguageModel)
    step = stage.step

    def is_bad(slot: int) -> bool:
        prompt = stage._prompts[slot]
        return b"Bad" in bytes(token % 256 for token in prompt[:, 0]) and stage._lengths[slot] - len(prompt) >= 2

    def checked(slots: Any, size: int) -> Any:
        if any(is_bad(slot) for slot in slots):
            raise error
        return step(slots, size)

    stage.step = checked  # type: ignore[method-assign]


NUM_STORM = 60  # requests; several of each kind meet in every slot


@pytest.mark.slow
def test_requests_that_survive_random_faults_sound_the_same_and_nothing_leaks(speaker: LoadedCheckpoint) -> None:
    chance = random.Random(7)
    voices = [(), *((random_voice(10 * seed, seed=seed),) for seed in (2, 4, 6))]
    texts = [
        [f"Text {i}.", "And more."][: chance.choice((1, 1, 1, 2))] if i % 20 else ["Bad."] for i in range(NUM_STORM)
    ]
    asked = [
        {
            "seed": chance.randrange(10**6),
            "frames": chance.randrange(3, 14),
            "voices": chance.choice(voices),
            "profile": chance.choice(("ttfa", "balanced", "throughput")),
            "streams": chance.random() < 0.5,
        }
        for _ in range(NUM_STORM)
    ]
    bad = {i for i in range(NUM_STORM) if i % 20 == 0}
    leaves = {i for i in range(NUM_STORM) if chance.random() < 0.2}

    synthesizer = start(speaker, max_batch_size=8, max_queue_size=10_000, prefix_cache_mb=0.2)
    runs_out = exhaust_memory(synthesizer, chance)
    poison(synthesizer, RuntimeError("a bad row"))
    outcomes: dict[int, np.ndarray | S1MiniError | None] = {}
    ended: list[OutputQueue] = []

    def listen(i: int) -> None:
        queue = ask(synthesizer, *texts[i], **asked[i])
        ended.append(queue)
        waves = []
        try:
            for number, chunk in enumerate(queue):
                waves.append(chunk.audio)
                if i in leaves and number == i % 3:
                    outcomes[i] = None
                    return
            outcomes[i] = np.concatenate(waves)
        except S1MiniError as error:
            outcomes[i] = error

    threads = []
    for i in range(NUM_STORM):
        threads.append(threading.Thread(target=listen, args=(i,)))
        threads[-1].start()
        time.sleep(chance.expovariate(1 / 0.004))
    for thread in threads:
        thread.join(EVENTUALLY_S)
    synthesizer.close()

    assert len(outcomes) == NUM_STORM
    assert all(queue.has_ended for queue in ended)
    assert leaks(synthesizer.core.scheduler) == []
    assert synthesizer.core.prefixes.stats.num_bytes <= 0.2e6
    assert sorted(runs_out) == ["decode", "prefill", "step"]
    failed = {i for i, outcome in outcomes.items() if isinstance(outcome, S1MiniError)}
    assert {i for i in failed if isinstance(outcomes[i], GenerationError)} <= bad
    assert len(failed - bad) <= 3  # the newest request when memory ran out twice

    plain = start(speaker, max_batch_size=8)
    survivors = [i for i, outcome in outcomes.items() if isinstance(outcome, np.ndarray)]
    assert len(survivors) > 0.6 * NUM_STORM
    for i in chance.sample(survivors, 20):
        assert np.array_equal(outcomes[i], sound(ask(plain, *texts[i], **asked[i]))), asked[i]


def exhaust_memory(synthesizer: Synthesizer, chance: random.Random) -> list[str]:
    """Raise out-of-memory errors in a step, in prefill and in decoding; return where they occurred."""
    model, codec = (runner.stage for runner in synthesizer.core.runners)
    happened: list[str] = []

    def wrap(stage: Any, method: str, name: str) -> None:
        plain, calls, at = getattr(stage, method), [0], chance.randrange(20, 60)

        def work(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                happened.append(name)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
            return plain(*arguments)

        setattr(stage, method, work)

    wrap(model, "step", "step")
    wrap(model, "prefill", "prefill")
    wrap(codec, "step", "decode")
    return happened


@pytest.mark.parametrize(
    ("devices", "threads"),
    [
        (("cuda", "cuda"), ["model", "codec", "references"]),
        (("cuda", "cpu"), ["model", "codec", "references"]),
        (("cpu", "cuda"), ["model", "codec"]),  # references are encoded where the language model is
    ],
)
def test_references_have_a_thread_of_their_own_if_the_language_model_is_on_a_gpu(
    devices: tuple[str, str], threads: list[str]
) -> None:
    policies = [
        SimpleNamespace(name=name, is_remote=False, is_autoregressive=name == "model", helped_size=0)
        for name in ("model", "codec")
    ]
    stages = [SimpleNamespace(device=torch.device(device)) for device in devices]
    chain: Any = SimpleNamespace(stages=stages, policies=policies)

    assert list(choose_threads(chain, num_bytes=10**9).stages) == threads
