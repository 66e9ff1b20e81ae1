"""Remote stages give the same output as one engine, survive lost replicas, and report every failure. Without Ray."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from leaks import leaks
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import (
    CapacityError,
    EngineNotReadyError,
    GenerationError,
    ParameterError,
    QueueFullError,
    RequestTimeoutError,
    VoiceUnsupportedError,
)
from s1_mini.families.registry import family_of
from s1_mini.remote.remote_stage import AHEAD, ClusterEngine
from s1_mini.remote.stage_worker import StageEngine
from s1_mini.remote.work import Call, LostError, Piece, Work
from s1_mini.runtime.loader import load
from s1_mini.weights.directory import read_json
from waiting import wait_until

pytestmark = pytest.mark.slow

TEXT = "Number one is said here, and it is longer. " * 2
SHORT = {"chunk_length": 50, "max_batch_size": 4}  # one utterance for each sentence
ASKED = {"seed": 3, "max_new_tokens": 24}  # at which a random cascade generates audio


class Apart:
    """An engine with its remote stages."""

    def __init__(self, engine: ClusterEngine, stages: list[StageEngine]) -> None:
        self.engine, self.stages = engine, stages

    def wait_until_idle(self) -> None:
        """Wait until no stage has work in flight or holds state of an ended request."""

        def left() -> list[str]:
            left = [f"requests of {each.facts.stage}" for each in self.stages if each.core.ledger]
            left += [output for each in self.stages for output in leaks(each.core.scheduler)]
            output = self.engine.health_check()
            is_busy = output["requests"] or output["slots"]["free"] < output["slots"]["total"]
            return left + (["requests"] if is_busy else [])

        wait_until(lambda: not left())


@contextmanager
def apart(
    checkpoint: Path, wrap: Callable[[str, Call], Call] = lambda _, call: call, **settings: object
) -> Iterator[Apart]:
    """Start an engine with remote stages."""
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", **settings)
    call, stages = None, []
    with ExitStack() as stack:
        for name in family_of(checkpoint).stage_names:
            stages.append(StageEngine(config, name, call))
            stack.callback(stages[-1].close)
            call = wrap(name, stages[-1].speak)
        assert call is not None
        engine = ClusterEngine(config, call, [stage.facts for stage in stages], max_open=16)
        yield Apart(stack.enter_context(engine), stages)


@dataclass
class Fault:
    """Wraps each stage, and injects a fault into the selected one."""

    stage: str = ""
    act: Act | None = None
    num_calls: int = 0
    num_left: int = 0
    is_mute: bool = False
    has_lost: bool = False
    most: int = 0

    def set(self, stage: str = "", act: Act | None = None) -> None:
        vars(self).update(vars(Fault(stage, act)))

    def wrap(self, name: str, call: Call) -> Call:
        def either(work: Work) -> AsyncGenerator[Piece, None]:
            if name != self.stage or self.act is None:
                return call(work)
            self.num_calls += 1
            return self.act(self, call, work)

        return either


Act = Callable[[Fault, Call, Work], AsyncGenerator[Piece, None]]


async def be_lost_once(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    """Lose the first replica that has started to work."""
    async with aclosing(call(work)) as pieces:
        has_begun = False
        async for piece in pieces:
            if not fault.has_lost and (has_begun or piece.is_last):
                fault.has_lost = True
                raise LostError("killed")
            has_begun = True
            yield piece


async def go_on_otherwise(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    async with aclosing(call(work)) as pieces:
        async for piece in pieces:
            yield replace(piece, items=piece.items + fault.num_calls, is_last=False)
            raise LostError("killed")


async def be_gone(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    raise LostError("ActorDiedError")
    yield


async def be_mute(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    """Send nothing after the first utterance."""
    if work.utterance == 0:
        async with aclosing(call(work)) as pieces:
            async for piece in pieces:
                yield piece
        return
    fault.is_mute = True
    try:
        await asyncio.sleep(3600)
    finally:
        fault.num_left += 1


Open = Callable[[Path], tuple[Apart, Fault]]


@pytest.fixture(scope="module")
def shared() -> Iterator[Open]:
    """Return the engine of a checkpoint with remote stages, started once, and its fault injectors."""
    started: dict[Path, tuple[Apart, Fault]] = {}
    with ExitStack() as stack:

        def open_once(checkpoint: Path) -> tuple[Apart, Fault]:
            if checkpoint not in started:
                fault = Fault()
                started[checkpoint] = stack.enter_context(apart(checkpoint, fault.wrap, **SHORT)), fault
            return started[checkpoint]

        yield open_once


@pytest.fixture
def opened(cascade: Path, shared: Open) -> Iterator[tuple[Apart, Fault]]:
    """A cascade; after the test none of its stages has work in flight."""
    parts, fault = shared(cascade)
    yield parts, fault
    fault.set()
    parts.wait_until_idle()


@pytest.fixture(scope="module", params=["cascade", "mel", "tiny"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def heard(engine: ProductionTTSEngine) -> tuple[np.ndarray, int]:
    """Audio and number of frames of two sentences, the second with the voice of the first."""
    chunks = list(engine.stream(TEXT, **ASKED))
    return np.concatenate([chunk.audio for chunk in chunks]), sum(chunk.frames for chunk in chunks)


def test_remote_stages_of_any_family_match_one_engine_when_a_replica_is_lost(checkpoint: Path, shared: Open) -> None:
    parts, fault = shared(checkpoint)
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu", **SHORT)) as together:
        expected, num_frames = heard(together)
    audio, again_frames = heard(parts.engine)
    assert np.array_equal(audio, expected)
    assert again_frames == num_frames
    for name in family_of(checkpoint).stage_names:
        fault.set(name, be_lost_once)
        again, again_frames = heard(parts.engine)
        assert fault.has_lost
        assert (again.shape, again_frames) == (expected.shape, num_frames)
        assert np.abs(again - expected).max() < 1e-4  # mel rows of different calls differ in their last bits
    parts.wait_until_idle()


def test_health_counts_slots_and_names_where_stages_are(opened: tuple[Apart, Fault]) -> None:
    health = opened[0].engine.health_check()

    assert health["ready"]
    assert health["slots"]["total"] == 4
    assert set(health["placement"].values()) == {"elsewhere"}


def test_caller_errors_are_the_same_as_with_one_engine(opened: tuple[Apart, Fault]) -> None:
    with pytest.raises(VoiceUnsupportedError):
        opened[0].engine.generate("Hello.", reference_audio=np.zeros(24_000, np.float32), reference_text="Ah.")


def test_a_recording_becomes_a_voice_in_a_process_without_stages(
    tiny: Path, engine: ProductionTTSEngine, tone: np.ndarray, shared: Open
) -> None:
    asked = {"reference_audio": tone, "reference_text": "Aah.", "seed": 3, "max_new_tokens": 8}
    expected = engine.generate("Hello.", **asked).audio
    assert np.array_equal(shared(tiny)[0].engine.generate("Hello.", **asked).audio, expected)


def test_word_times_are_refused(tiny: Path, tmp_path: Path) -> None:
    aligned = Path(shutil.copytree(tiny, tmp_path / "aligned"))
    config = read_json(aligned / "config.json") | {"alignment": {"layer": 1, "head": 0, "shift_ms": 20}}
    (aligned / "config.json").write_text(json.dumps(config))

    with apart(aligned) as remote, pytest.raises(ParameterError, match=r"word_times: .*in other processes"):
        remote.engine.generate("Hello.", word_times=True)


def test_a_replica_that_resumes_with_different_output_fails_the_request(opened: tuple[Apart, Fault]) -> None:
    parts, fault = opened
    fault.set("coarse", go_on_otherwise)
    with pytest.raises(GenerationError, match="replica of stage coarse was lost, and its successor"):
        parts.engine.generate("Hello there.", **ASKED)


def test_a_stage_that_loses_every_replica_ends_the_request_with_an_error(opened: tuple[Apart, Fault]) -> None:
    parts, fault = opened
    fault.set("fine", be_gone)
    with pytest.raises(EngineNotReadyError, match=r"stage fine lost 4 replicas .*: ActorDiedError"):
        parts.engine.generate("Hello there.", **ASKED)
    assert fault.num_calls == 4, "the codec's own replicas are not to blame"


def wait_until_left(fault: Fault) -> None:
    wait_until(lambda: 0 < fault.num_left == fault.num_calls - 1)


def test_a_request_times_out_although_a_stage_is_silent(
    opened: tuple[Apart, Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, fault = opened
    fault.set("codec", be_mute)
    ledger = parts.engine._running.synthesizer.core.ledger
    late = ledger.late
    monkeypatch.setattr(ledger, "late", lambda now: late(now + 1000 * fault.is_mute))
    with pytest.raises(RequestTimeoutError, match="timed out"):
        parts.engine.generate(TEXT, voice="one", **ASKED)
    wait_until_left(fault)


def test_cancelling_a_request_cancels_the_work_of_all_stages(opened: tuple[Apart, Fault]) -> None:
    parts, fault = opened
    fault.set("semantic", be_mute)
    listening = parts.engine.stream(TEXT, voice="one", **ASKED)
    next(listening)
    listening.close()
    wait_until_left(fault)
    for _ in range(20):  # or before any stage has received it
        parts.engine.stream(TEXT, voice="one", **ASKED).close()  # type: ignore[attr-defined]


async def be_counted(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    """Note how many utterances are in progress."""
    fault.most = max(fault.most, fault.num_calls - fault.num_left)
    try:
        async with aclosing(call(work)) as pieces:
            async for piece in pieces:
                yield piece
    finally:
        fault.num_left += 1


def test_a_long_text_has_few_utterances_in_progress_and_is_paused_while_nobody_reads(
    opened: tuple[Apart, Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.core.speech.UNREAD_S", 0.1)
    parts, fault = opened
    fault.set("codec", be_counted)
    listening = parts.engine.stream(TEXT * 8, voice="one", **ASKED)
    next(listening)

    wait_until(lambda: fault.num_left == fault.num_calls)
    assert fault.num_calls < 16
    assert 1 < fault.most <= AHEAD
    assert list(listening)[-1].finish_reason is not None
    assert fault.num_calls == 16


def test_stopping_fails_requests_in_flight(cascade: Path) -> None:
    with apart(cascade) as parts:
        listening = parts.engine.stream(TEXT * 10, **ASKED)
        next(listening)

        parts.engine.stop(drain=False)

        with pytest.raises(EngineNotReadyError, match="was stopped during this request"):
            list(listening)


@pytest.mark.parametrize(
    "error", [CapacityError("too long"), QueueFullError(3, 2, 1.5), ParameterError("top_p", "7"), LostError("killed")]
)
def test_an_error_keeps_its_type_across_processes(error: Exception) -> None:
    received = pickle.loads(pickle.dumps(error))

    assert type(received) is type(error)
    assert str(received) == str(error)
    assert vars(received) == vars(error)


def test_a_stage_reads_no_weights_but_its_own(checkpoint: Path) -> None:
    names = family_of(checkpoint).stage_names
    for name in names:
        loaded = load(EngineConfig(checkpoint_path=checkpoint, device="cpu"), here={name}).loaded
        kinds = [stage.device.type for stage in loaded.chain(2, 256).stages]
        assert kinds == ["cpu" if each == name else "meta" for each in names]
