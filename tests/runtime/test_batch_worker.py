"""The worker keeps its promises under load and under faults: each request ends once, and as it would have alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from s1_mini.config import EngineConfig
from s1_mini.exceptions import (
    CapacityError,
    EngineError,
    EngineNotReadyError,
    GenerationError,
    QueueFullError,
    RequestTimeoutError,
    S1MiniError,
)
from s1_mini.runtime.generator import Generator
from s1_mini.runtime.job import Piece
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import SamplingParams, Voice

SLOTS = 4
FOREVER = float("inf")


def start(speaker: Speaker, **settings: Any) -> Generator:
    values = {"device": "cpu", "max_batch_size": SLOTS, "max_columns": 512, "max_queue_size": 10_000} | settings
    return Generator(speaker, EngineConfig(**values))


@pytest.fixture
def generator(speaker: Speaker) -> Iterator[Generator]:
    made = start(speaker)
    yield made
    made.close(drains=False)


def some_voice(speaker: Speaker, seed: int, frames: int = 20) -> Voice:
    codes = torch.randint(0, 64, (speaker.model.num_codebooks, frames), generator=torch.Generator().manual_seed(seed))
    return Voice({"codes": codes}, f"Voice number {seed}.")


def sound(outbox: Outbox) -> np.ndarray:
    return np.concatenate([chunk.audio for chunk in outbox])


def ask(generator: Generator, text: str = "Hello.", seed: int = 1, frames: int = 12, **options: Any) -> Outbox:
    options = {"voices": (), "deadline": FOREVER} | options
    pieces = options.pop("pieces", [text])
    voices = options.pop("voices")
    return generator.speak(pieces, voices, SamplingParams(seed=seed, max_new_tokens=frames), **options)


def test_requests_in_any_company_sound_as_they_do_alone(generator: Generator, speaker: Speaker) -> None:
    voices = [(), (some_voice(speaker, 1),), (some_voice(speaker, 2, 40),)]
    asked = [(f"Text number {i}.", i, 5 + 3 * i, voices[i % 3]) for i in range(10)]
    alone = [sound(ask(generator, text, seed, frames, voices=voice)) for text, seed, frames, voice in asked]

    together = [ask(generator, text, seed, frames, voices=voice) for text, seed, frames, voice in asked]

    assert all(np.array_equal(sound(outbox), wave) for outbox, wave in zip(together, alone, strict=True))


def test_another_engine_says_the_same(generator: Generator, speaker: Speaker) -> None:
    other = start(speaker)

    assert np.array_equal(sound(ask(other)), sound(ask(generator)))
    other.close()


def test_a_cached_voice_sounds_as_one_read_anew(speaker: Speaker) -> None:
    voice = some_voice(speaker, 3, 100)
    fresh, cached = start(speaker, kv_cache_size=0), start(speaker)
    sound(ask(cached, "Something else.", voices=(voice,)))

    assert np.array_equal(sound(ask(cached, voices=(voice,))), sound(ask(fresh, voices=(voice,))))
    assert cached.worker.prefixes.stats.hits == 1
    assert fresh.worker.prefixes.stats.entries == 0
    for each in (fresh, cached):
        each.close()


def test_requests_that_share_a_voice_read_it_once(generator: Generator, speaker: Speaker) -> None:
    voice = some_voice(speaker, 4, 150)
    read: list[int] = []
    runner = generator.worker.runner
    plain = runner.read
    runner.read = lambda piece, columns: (read.append(columns), plain(piece, columns))  # type: ignore[method-assign,assignment,return-value,func-returns-value]

    outboxes = [ask(generator, f"Text {i}.", voices=(voice,)) for i in range(3)]
    for outbox in outboxes:
        sound(outbox)

    prompt = generator._model.prompt("Text 0.", [voice])
    rest = prompt.columns.shape[1] - 1 - prompt.num_shared
    assert sum(read) == prompt.num_shared + 3 * rest


def test_later_pieces_speak_with_the_voice_that_the_first_has_found(generator: Generator) -> None:
    texts = ["One sentence.", "And another one.", "The last."]

    both = sound(ask(generator, pieces=texts, seed=5))

    first = ask(generator, texts[0], seed=5)
    assert len(both) > len(sound(first))
    assert np.array_equal(both, sound(ask(generator, pieces=texts, seed=5)))


def test_what_a_listener_leaves_is_given_up_within_a_frame(generator: Generator) -> None:
    outbox = ask(generator, frames=400)
    listener = iter(outbox)
    next(listener)

    listener.close()

    until = time.monotonic() + 5
    while generator.worker.num_jobs and time.monotonic() < until:
        time.sleep(0.01)
    assert outbox.has_ended
    assert list(generator.worker.audit()) == []


def test_the_last_chunk_tells_where_the_first_seconds_went(generator: Generator) -> None:
    started = time.monotonic()
    *before, last = ask(generator)
    took = time.monotonic() - started

    assert before
    assert all(chunk.timing is None for chunk in before)
    assert last.timing is not None
    assert min(last.timing.queue_s, last.timing.prefill_s) >= 0
    assert last.timing.queue_s + last.timing.prefill_s <= last.timing.first_chunk_s <= took


def test_what_was_left_before_its_turn_tells_of_no_prefill(generator: Generator) -> None:
    outboxes = [ask(generator, frames=400) for _ in range(generator.worker.slots.count + 1)]
    for outbox in outboxes:
        outbox.close()

    assert [chunk.timing.prefill_s for chunk in outboxes[-1] if chunk.timing] == [None]


def test_a_full_queue_refuses_and_what_was_taken_in_is_spoken(speaker: Speaker) -> None:
    generator = start(speaker, max_queue_size=2, max_batch_size=1)
    outboxes, refusals = [], []
    for i in range(8):
        try:
            outboxes.append(ask(generator, f"Text {i}.", frames=30))
        except QueueFullError as error:
            refusals.append(error.retry_after_s)

    assert refusals
    assert min(refusals) >= 1
    assert all(len(sound(outbox)) for outbox in outboxes)
    generator.close()


def test_stopping_finishes_what_was_taken_in_and_refuses_what_comes(speaker: Speaker) -> None:
    generator = start(speaker)
    outboxes = [ask(generator, f"Text {i}.") for i in range(6)]

    generator.close()

    assert all(len(sound(outbox)) for outbox in outboxes)
    with pytest.raises(EngineNotReadyError, match="takes in nothing more"):
        ask(generator)


def test_a_request_past_its_deadline_ends_with_an_error_and_frees_its_slot(generator: Generator) -> None:
    outbox = ask(generator, frames=400, deadline=time.monotonic() + 0.05)

    with pytest.raises(RequestTimeoutError, match="not finished in time"):
        sound(outbox)
    assert list(generator.worker.audit()) == []


def test_a_request_larger_than_a_slot_is_refused_at_once(generator: Generator, speaker: Speaker) -> None:
    with pytest.raises(CapacityError, match="a slot holds 512"):
        ask(generator, voices=(some_voice(speaker, 1, 600),))


def test_a_step_that_fails_fails_the_row_it_belongs_to(generator: Generator) -> None:
    expected = sound(ask(generator, "Good.", frames=20))
    poison(generator, {"Bad."}, RuntimeError("a bad row"))

    bad, good = ask(generator, "Bad.", frames=20), ask(generator, "Good.", frames=20)

    assert np.array_equal(sound(good), expected)
    with pytest.raises(GenerationError, match="a bad row"):
        sound(bad)


def test_a_thread_that_dies_is_an_error_to_all_and_is_noticed(speaker: Speaker) -> None:
    generator = start(speaker)

    def die() -> None:
        raise SystemError("the bookkeeping is broken")

    generator.worker.scheduler.reads = die  # type: ignore[method-assign,assignment]
    outbox = ask(generator)

    with pytest.raises(EngineNotReadyError, match="has died"):
        sound(outbox)
    assert not generator.worker.is_alive
    with pytest.raises(EngineError, match="bookkeeping is broken"):
        ask(generator)


def test_a_sound_thread_that_dies_is_noticed_too(speaker: Speaker) -> None:
    generator = start(speaker)

    def die(*_: Any, **__: Any) -> None:
        raise SystemError("the choice is broken")

    generator.worker.scheduler.decodes = die  # type: ignore[method-assign,assignment]

    with pytest.raises(EngineError, match="has died"):  # of who was taken in, or, if it died sooner, of who asks
        sound(ask(generator))
    assert not generator.worker.is_alive


def poison(generator: Generator, texts: set[str], error: Exception) -> None:
    """Let every step fail in which a piece takes part that speaks one of `texts`."""
    runner = generator.worker.runner
    make_piece, step, step_alone = generator._piece, runner.step, runner.step_alone
    bad: set[int] = set()

    def remember(job: Any, index: int, text: str, voices: Any) -> Piece:
        piece = make_piece(job, index, text, voices)
        if text in texts:
            bad.add(id(piece))
            kept.append(piece)
        return piece

    kept: list[Piece] = []  # so that no id is used again

    def check(pieces: Any) -> None:
        if any(id(piece) in bad and len(piece.frames) >= 2 for piece in pieces):
            raise error

    def checked(pieces: Any) -> Any:
        check(pieces)
        return step(pieces)

    def checked_alone(piece: Piece, others: Any) -> Any:
        check([piece])
        runner.step = step  # type: ignore[method-assign]
        try:
            return step_alone(piece, others)
        finally:
            runner.step = checked  # type: ignore[method-assign,assignment]

    generator._piece = remember  # type: ignore[method-assign,assignment]
    runner.step, runner.step_alone = checked, checked_alone  # type: ignore[method-assign,assignment]


@pytest.mark.slow
def test_a_storm_leaves_every_survivor_as_it_would_be_alone_and_nothing_behind(speaker: Speaker) -> None:
    chance = random.Random(7)
    voices = [(), *((some_voice(speaker, seed, 10 * seed),) for seed in (2, 4, 6))]
    asked = [
        {
            "pieces": [f"Text {i}.", "And more of it."][: chance.choice((1, 1, 1, 2))] if i % 20 else [f"Bad {i}."],
            "seed": chance.randrange(10**6),
            "frames": chance.randrange(3, 24),
            "voices": chance.choice(voices),
            "profile": chance.choice(("ttfa", "balanced", "throughput")),
            "streams": chance.random() < 0.5,
        }
        for i in range(500)
    ]
    bad = {i for i in range(500) if i % 20 == 0}
    leaves = {i for i in range(500) if chance.random() < 0.2}

    generator = start(speaker, max_batch_size=8, prefix_cache_mb=0.2)
    runs_out = exhaust_memory(generator, chance)
    poison(generator, {f"Bad {i}." for i in bad}, RuntimeError("a bad row"))
    outcomes: dict[int, np.ndarray | S1MiniError | None] = {}
    ended: list[Outbox] = []

    def listen(i: int) -> None:
        outbox = ask(generator, **asked[i])
        ended.append(outbox)
        waves = []
        try:
            for number, chunk in enumerate(outbox):
                waves.append(chunk.audio)
                if i in leaves and number == i % 3:
                    outcomes[i] = None
                    return
            outcomes[i] = np.concatenate(waves)
        except S1MiniError as error:
            outcomes[i] = error

    threads = []
    for i in range(500):
        threads.append(threading.Thread(target=listen, args=(i,)))
        threads[-1].start()
        time.sleep(chance.expovariate(1 / 0.004))
    for thread in threads:
        thread.join(120)
    generator.close()

    assert len(outcomes) == 500
    assert all(outbox.has_ended for outbox in ended)
    assert list(generator.worker.audit()) == []
    assert generator.worker.prefixes.stats.num_bytes <= 0.2e6
    assert sorted(runs_out) == ["decode", "read", "step"]
    failed = {i for i, outcome in outcomes.items() if isinstance(outcome, S1MiniError)}
    assert {i for i in failed if isinstance(outcomes[i], GenerationError)} <= bad
    assert len(failed - bad) <= 3  # who was the newest when memory ran out twice

    plain = start(speaker, max_batch_size=8)
    survivors = [i for i, outcome in outcomes.items() if isinstance(outcome, np.ndarray)]
    assert len(survivors) > 300
    for i in chance.sample(survivors, 100):
        assert np.array_equal(outcomes[i], sound(ask(plain, **asked[i]))), asked[i]
    plain.close()


def exhaust_memory(generator: Generator, chance: random.Random) -> list[str]:
    """Let the memory run out three times: in a step, in reading, in decoding. Give what it happened in."""
    runner = generator.worker.runner
    happened: list[str] = []
    at = {name: chance.randrange(20, 60) for name in ("step", "read", "decode")}

    def wrap(name: str) -> None:
        plain, calls = getattr(runner, name), [0]

        def work(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == at[name]:
                happened.append(name)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
            return plain(*arguments)

        setattr(runner, name, work)

    for name in at:
        wrap(name)
    return happened
