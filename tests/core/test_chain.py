"""A chain of three stages, however it is placed: as alone, whole or streamed, and nothing left behind."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from s1_mini.exceptions import EngineNotReadyError, GenerationError, RequestTimeoutError, S1MiniError
from s1_mini.runtime.engine_core import EngineCore
from tests.core.conftest import ONE_THREAD, THREE_THREADS, ask, sound, start
from tests.toy.stages import SAMPLES, Text

PLACEMENTS = pytest.mark.parametrize("threads", [ONE_THREAD, {"model": (0, 1), "vocoder": (2,)}, THREE_THREADS])


@PLACEMENTS
@pytest.mark.parametrize("ahead", [False, True])
def test_requests_sound_alike_alone_and_together_wherever_the_stages_are(threads: dict, ahead: bool) -> None:
    alone, together = start(ONE_THREAD, slots=1), start(threads, slots=4, ahead=ahead)
    asked = [(["One sentence.", "Two."][: 1 + i % 2], i, {"max_steps": 5 + 2 * i, "voice": i / 10}) for i in range(12)]

    expected = [sound(ask(alone, texts, seed, **options)) for texts, seed, options in asked]
    heard = [ask(together, texts, seed, **options) for texts, seed, options in asked]

    for queue, wave in zip(heard, expected, strict=True):
        assert np.array_equal(sound(queue), wave)
    for each in (alone, together):
        each.stop()
        assert list(each.scheduler.audit()) == []


@pytest.mark.parametrize("profile", ["ttfa", "balanced", "throughput"])
def test_sound_is_the_same_in_chunks_of_any_size(core: EngineCore, profile: str) -> None:
    whole = sound(ask(core, max_steps=21, profile="throughput"))

    chunks = [chunk.audio for chunk in ask(core, max_steps=21, profile=profile)]

    assert np.array_equal(np.concatenate(chunks), whole)
    assert len(whole) % SAMPLES == 0
    assert len(chunks) > 2 or profile == "throughput"


def test_a_stage_begins_before_the_one_before_it_ends(core: EngineCore) -> None:
    queue = ask(core, max_steps=10**6, temperature=0.0)

    listener = iter(queue)
    next(listener)

    assert core.scheduler.stages[0].running
    listener.close()


def test_what_is_shared_is_read_once(core: EngineCore) -> None:
    text = core.runners[0].stage
    assert isinstance(text, Text)
    shared = "A voice that many share. "
    queues = [ask(core, [f"Text {i}."], shared=shared) for i in range(3)]
    waves = [sound(queue) for queue in queues]

    assert text.num_read == len(shared) + 3 * (len("Text 0.") - 1)
    fresh = start()
    assert all(np.array_equal(wave, sound(ask(fresh, [f"{shared}Text {i}."]))) for i, wave in enumerate(waves))
    fresh.stop()


def test_a_storm_leaves_every_survivor_as_it_would_be_alone_and_nothing_behind() -> None:
    chance = random.Random(3)
    core, plain = start(slots=6, ahead=True), start(ONE_THREAD, slots=1)
    poison(core)
    asked = []
    for i in range(300):
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
        assert list(each.scheduler.audit()) == []


def poison(core: EngineCore) -> None:
    """Let every step fail in which a text takes part that begins with "Bad"."""
    stage = core.runners[0].stage
    plain = stage.step

    def step(slots, size):
        if any(stage.begun[slot].inputs[0, 0] == ord("B") and stage.steps[slot] > 1 for slot in slots):
            raise RuntimeError("a bad row")
        return plain(slots, size)

    stage.step = step


def test_a_deadline_ends_a_request_wherever_it_is(core: EngineCore) -> None:
    queue = ask(core, max_steps=10**6, temperature=0.0, deadline=time.monotonic() + 0.1)

    with pytest.raises(RequestTimeoutError, match="not finished in time"):
        sound(queue)
    assert list(core.scheduler.audit()) == []


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_thread_that_dies_is_an_error_to_all(stage: int) -> None:
    core = start()

    def die(*_: object) -> None:
        raise SystemError("broken")

    core.runners[stage].prepare = die
    for _ in range(3):
        with pytest.raises(S1MiniError, match=r"has (died|failed)"):  # of who was taken in, or of who asks
            sound(ask(core))
    assert not core.is_alive
    core.stop()


@pytest.mark.parametrize("drains", [True, False])
def test_a_stop_finishes_what_was_taken_in_or_ends_it(drains: bool) -> None:
    core = start()
    queues = [ask(core, ["One.", "Two."], max_steps=25) for _ in range(10)]

    core.stop(drains=drains)

    for queue in queues:
        if drains:
            assert len(sound(queue))
        else:
            with pytest.raises(EngineNotReadyError, match="was stopped"):
                sound(queue)
