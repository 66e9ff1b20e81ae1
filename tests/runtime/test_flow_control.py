"""Long texts and slow consumers use a bounded part of the engine, and their audio is unchanged."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from leaks import leaks
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import MAX_QUEUED, Request
from s1_mini.exceptions import CapacityError, EngineError
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.synthesizer import Synthesizer
from tests.runtime.conftest import ask, random_voice, sound, start
from waiting import wait_until

PIECES = [f"Piece number {number}." for number in range(16)]
WINDOW_S = 2.0


VOICE = random_voice()


def is_idle(synthesizer: Synthesizer) -> bool:
    stages = synthesizer.core.scheduler.stages
    return all(each.slots.num_free == each.slots.count and not each.in_flight for each in stages)


@pytest.fixture
def prompts(speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Thread and text of each prompt that is built."""
    built: list[tuple[int, str]] = []
    plain = speaker.loaded.prompt

    def prompt(text: str, *more: Any) -> PromptTokens:
        built.append((threading.get_ident(), text))
        return plain(text, *more)

    monkeypatch.setattr(speaker.loaded, "prompt", prompt)
    return built


@pytest.mark.parametrize("has_voice", [True, False])
def test_a_long_text_has_only_its_next_pieces_in_the_queue(
    has_voice: bool, synthesizer: Synthesizer, prompts: list[tuple[int, str]]
) -> None:
    line, waiting = synthesizer.core.line, []
    plain = line._push

    def push(request: Request, utterances: Any) -> None:
        plain(request, utterances)
        waiting.append(line.num_waiting(request))

    line._push = push  # type: ignore[method-assign]

    queue = ask(synthesizer, *PIECES, voices=[VOICE] if has_voice else [])
    built = [text for thread, text in prompts if thread == threading.get_ident()]
    sound(queue)

    assert built == ([*PIECES[:MAX_QUEUED], max(PIECES, key=len)] if has_voice else PIECES[:1])
    assert max(waiting) <= MAX_QUEUED
    assert len(waiting) > 1


def test_a_long_text_alone_takes_all_slots(speaker: LoadedCheckpoint) -> None:
    synthesizer, used = start(speaker, max_batch_size=8), []
    slots = synthesizer.core.scheduler.stages[0].slots
    plain = slots.allocate

    def allocate() -> int:
        used.append(slots.count - slots.num_free + 1)
        return plain()

    slots.allocate = allocate  # type: ignore[method-assign]
    sound(ask(synthesizer, *PIECES, voices=[VOICE], frames=24))
    synthesizer.close()

    assert max(used) == 8


def test_a_later_piece_that_leaves_no_room_is_refused_at_submission(synthesizer: Synthesizer) -> None:
    with pytest.raises(CapacityError, match="a slot has 512"):
        ask(synthesizer, *PIECES, "Much too long. " * 60, voices=[VOICE])

    assert synthesizer.core.line.is_empty
    assert len(synthesizer.core.ledger) == 0


def test_a_later_prompt_that_fails_ends_its_request_alone(
    synthesizer: Synthesizer, speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, plain = sound(ask(synthesizer, *PIECES[:6], voices=[VOICE])), speaker.loaded.prompt

    def prompt(text: str, *more: Any) -> PromptTokens:
        if text == "Bad.":
            raise RuntimeError("a bad prompt")
        return plain(text, *more)

    monkeypatch.setattr(speaker.loaded, "prompt", prompt)
    bad, good = ask(synthesizer, *PIECES[:8], "Bad.", voices=[VOICE]), ask(synthesizer, *PIECES[:6], voices=[VOICE])

    assert np.array_equal(sound(good), expected)
    with pytest.raises(EngineError, match="a bad prompt"):
        sound(bad)
    assert leaks(synthesizer.core.scheduler) == []


def test_an_unread_stream_pauses_and_resumes_unchanged(
    speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.core.speech.UNREAD_S", WINDOW_S)
    synthesizer = start(speaker, max_batch_size=2)
    expected = sound(ask(synthesizer, *PIECES, voices=[VOICE], streams=False))

    queue = ask(synthesizer, *PIECES, voices=[VOICE])
    second_bytes = 4 * speaker.description.sample_rate
    wait_until(lambda: queue.unread_bytes > WINDOW_S * second_bytes and is_idle(synthesizer))
    longest_s = 12 / 20 + 0.2  # an utterance of 12 frames and a pause
    assert queue.unread_bytes < (WINDOW_S + longest_s) * second_bytes
    assert len(synthesizer.core.line) == 0

    other = sound(ask(synthesizer, *PIECES[:3], voices=[VOICE], streams=False))

    assert np.array_equal(other, sound(ask(synthesizer, *PIECES[:3], voices=[VOICE])))
    assert not queue.has_ended
    assert np.array_equal(sound(queue), expected)
    synthesizer.close()
    assert leaks(synthesizer.core.scheduler) == []


def paused_stream(speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch) -> tuple[Synthesizer, OutputQueue]:
    """Start a stream that nothing reads, and wait until it is paused."""
    monkeypatch.setattr("s1_mini.core.speech.UNREAD_S", 0.1)
    synthesizer = start(speaker)
    queue = ask(synthesizer, *PIECES, voices=[VOICE])
    wait_until(lambda: queue.unread_bytes > 0 and is_idle(synthesizer))
    return synthesizer, queue


def test_a_whole_response_does_not_pause_and_counts_its_unread_audio(
    synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.core.speech.UNREAD_S", 0.1)
    queue = ask(synthesizer, *PIECES, voices=[VOICE], streams=False)
    wait_until(lambda: queue.has_ended)

    assert queue.unread_bytes == sound(queue).nbytes
    assert queue.unread_bytes == 0


def test_stopping_finishes_a_stream_that_its_caller_reads_afterwards(
    speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthesizer, queue = paused_stream(speaker, monkeypatch)

    synthesizer.close()

    assert queue.has_ended
    assert len(sound(queue))


def test_time_that_a_stream_is_paused_for_its_consumer_does_not_count_as_late(
    speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthesizer, queue = paused_stream(speaker, monkeypatch)
    assert not queue.has_ended

    (request,) = synthesizer.core.scheduler.ledger.all()
    past = request.deadline = time.monotonic()
    wait_until(lambda: request.deadline > past)

    assert len(sound(queue))
    synthesizer.close()
    assert leaks(synthesizer.core.scheduler) == []
