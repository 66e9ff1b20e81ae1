"""A part of a text that continues the voice of another part waits for that voice."""

from __future__ import annotations

from functools import partial
from math import inf

import numpy as np

from s1_mini.byte_cache import ByteCache
from s1_mini.core.items import Items
from s1_mini.core.messages import Report, StepResult
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import Later, Place, Request, Utterance
from s1_mini.core.scheduler import Follow, Scheduler
from s1_mini.core.speech import AudioOutput
from s1_mini.core.stage import Spec
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.remote.remote_stage import Arriving
from s1_mini.types import SamplingParams


class Ignored:
    """A source whose audio the test delivers itself."""

    def fetch(self, utterance: Utterance) -> None:
        pass

    forget = fetch


def test_no_utterance_is_built_while_the_voice_that_it_continues_is_being_set() -> None:
    sound = Spec("float32", (100,), 10)
    policy = Arriving(name="audio", input=sound, output=sound, slots=16, ahead=8)
    scheduler = Scheduler([policy], WaitingLine(10), ByteCache(1000, 10))
    speech = AudioOutput(OutputQueue(lambda: None), sample_rate=1000, arrived=0.0, is_streamed=True)
    request = Request(0, speech, SamplingParams(), 0.0, inf)
    voice, had_voice, utterances = [], [], []

    def build(number: int) -> Utterance:
        had_voice.append(bool(voice))
        prompt = PromptTokens(np.zeros((4, 1), np.int64))
        utterance = Utterance(request, number, prompt, 10, Place(0, number), arriving=Items(sound), source=Ignored())
        utterance.has_arrived = False
        if number == 7:
            utterance.set_voice = voice.append
        utterances.append(utterance)
        return utterance

    def plan() -> list[Follow]:
        follows = []
        while (made := scheduler.plan(0)) is not None:
            frames = [np.array(begin.inputs) for begin in made.begins]
            ends = [True] * len(frames)
            report = Report(StepResult(frames, [len(each) for each in frames], ends, ends))
            scheduler.deliver(made, report)
            follows += scheduler.report(made, report)
        return follows

    request.later += [Later(partial(build, number), makes_voice=number == 7) for number in range(9)]
    scheduler.submit(request)
    speech.begin([[None]])
    first = [later.build() for later in request.take_later(4)]
    request.is_building = False
    scheduler.open(request, first)
    wave = np.ones((1, 100), np.float32)
    for follow in [*plan(), *scheduler.arrive(utterances[3], wave, is_final=False)]:
        follow.work()
    plan()
    assert len(utterances) == 8

    setting = scheduler.arrive(utterances[7], wave, is_final=True, made=[wave])
    scheduler.arrive(utterances[0], wave, is_final=True)
    for follow in [*plan(), *setting, *plan()]:
        follow.work()
    for follow in scheduler.arrive(utterances[1], wave, is_final=True) + plan():
        follow.work()

    assert had_voice == [False] * 8 + [True]
