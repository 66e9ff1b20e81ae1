"""Shared by scheduler tests: an engine core with the toy family's stages."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from leaks import leaks
from s1_mini.byte_cache import ByteCache
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import Place, Request, Utterance
from s1_mini.core.speech import AudioOutput
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.runtime.engine_core import EngineCore, Threads
from s1_mini.types import SamplingParams
from tests.toy.stages import SAMPLE_RATE, Frames, Text, Vocoder, policies
from waiting import wait_until

ONE_THREAD = {"all": (0, 1, 2)}
THREE_THREADS = {"text": (0,), "frames": (1,), "vocoder": (2,)}
numbers = itertools.count()
STARTED: list[EngineCore] = []  # by the current test


def start(
    threads: dict[str, Sequence[int]] = THREE_THREADS, slots: int = 4, *, ahead: bool = False, **options: Any
) -> EngineCore:
    stages = Text(is_overlapped=ahead), Frames(is_overlapped=ahead), Vocoder(is_overlapped=ahead)
    core = EngineCore(policies(slots), stages, WaitingLine(1000), ByteCache(10**6), Threads(threads), **options)
    core.start()
    STARTED.append(core)
    return core


@pytest.fixture(autouse=True)
def _stop_started() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().stop(drains=False)


def ask(core: EngineCore, texts: Sequence[str] = ("Hello.",), seed: int = 1, **options: Any) -> OutputQueue:
    options = {"max_steps": 30, "voice": 0.0, "deadline": float("inf"), "streams": True} | options
    queue = OutputQueue(lambda: core.scheduler.cancel(request))
    now = time.monotonic()
    speech = AudioOutput(queue, sample_rate=SAMPLE_RATE, arrived=now, is_streamed=options["streams"])
    sampling = SamplingParams(temperature=options.get("temperature", 0.8))
    request = Request(next(numbers), speech, sampling, now, options["deadline"], options.get("profile", "balanced"))
    voice = {"speaker": np.full(8, options["voice"], np.float32)}
    shared, utterances = options.get("shared", ""), list[Utterance]()
    for index, text in enumerate(texts):
        items = np.array([[ord(each)] for each in shared + text])
        prompt = PromptTokens(items, len(shared), shared, voice)
        utterances.append(Utterance(request, index, prompt, options["max_steps"], Place(seed, index)))
    core.submit(request)
    core.scheduler.open(request, utterances)
    return queue


def settle(core: EngineCore) -> None:
    """Wait until no request is open, and check that nothing is held."""
    wait_until(lambda: not core.ledger and not any(queue.in_flight for queue in core.scheduler.stages))
    assert leaks(core.scheduler) == []


def sound(queue: OutputQueue) -> np.ndarray:
    return np.concatenate([chunk.audio for chunk in queue])


@pytest.fixture
def core() -> EngineCore:
    return start()
