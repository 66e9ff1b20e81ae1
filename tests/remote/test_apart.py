"""Stages apart say what one engine says, whoever is lost on the way, and nothing ends in silence. Without Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from apart_room import Apart, apart
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
from s1_mini.remote.work import Call, LostError, Piece, Work
from s1_mini.runtime.loader import load
from waiting import wait_until

TEXT = "Number one is said here, and it is longer. " * 2
SHORT = {"chunk_length": 50, "max_batch_size": 4}  # a piece for each sentence
ASKED = {"seed": 3, "max_new_tokens": 24}  # with which a random cascade has something to say


class Losses:
    """Stands before each stage, and loses replicas when it is told to."""

    def __init__(self) -> None:
        self.next: set[str] = set()  # stages of which the next working replica is lost
        self.lost: list[str] = []

    def wrap(self, name: str, call: Call) -> Call:
        async def lossy(work: Work) -> AsyncGenerator[Piece, None]:
            async with aclosing(call(work)) as pieces:
                has_begun = False
                async for piece in pieces:
                    if name in self.next and (has_begun or piece.is_last):
                        self.next.remove(name)
                        self.lost.append(name)
                        raise LostError("killed")
                    has_begun = True
                    yield piece

        return lossy


@pytest.fixture(scope="module", params=["cascade", "mel", "tiny"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def heard(engine: ProductionTTSEngine) -> np.ndarray:
    """Two sentences, the second in the voice that the first has found."""
    return np.concatenate([chunk.audio for chunk in engine.stream(TEXT, **ASKED)])


def test_any_family_sounds_apart_as_together_whichever_replica_is_lost_meanwhile(checkpoint: Path) -> None:
    losses = Losses()
    with (
        ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu", **SHORT)) as together,
        apart(checkpoint, losses.wrap, **SHORT) as parts,
    ):
        expected = heard(together)
        assert np.array_equal(heard(parts.engine), expected)
        names = family_of(checkpoint).stage_names
        for name in names:
            losses.next.add(name)
            again = heard(parts.engine)
            assert again.shape == expected.shape
            assert np.abs(again - expected).max() < 1e-4  # a mel's rows of other calls differ in their last bits

        assert losses.lost == list(names)
        parts.wait_until_idle()


@pytest.fixture(scope="module")
def parts(cascade: Path) -> Iterator[Apart]:
    with apart(cascade, max_batch_size=2) as parts:
        yield parts


def test_health_counts_slots_and_names_where_stages_are(parts: Apart) -> None:
    told = parts.engine.health_check()

    assert told["ready"]
    assert told["slots"]["total"] == 2
    assert set(told["placement"].values()) == {"elsewhere"}


def test_what_a_caller_did_wrong_is_told_as_by_one_engine(parts: Apart) -> None:
    with pytest.raises(VoiceUnsupportedError):
        parts.engine.generate("Hello.", reference_audio=np.zeros(24_000, np.float32), reference_text="Ah.")


def test_a_recording_becomes_a_voice_though_no_stage_works_in_that_process(tiny: Path, tone: np.ndarray) -> None:
    asked = {"reference_audio": tone, "reference_text": "Aah.", "seed": 3, "max_new_tokens": 8}
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")) as together, apart(tiny) as parts:
        expected = together.generate("Hello.", **asked).audio
        assert np.array_equal(parts.engine.generate("Hello.", **asked).audio, expected)


class Fault:
    """Stands before one stage, and once `is_on` it does what that must not do."""

    def __init__(self, stage: str, act: Callable[[Fault, Call, Work], AsyncGenerator[Piece, None]]) -> None:
        self.is_on, self.num_calls, self.num_left = False, 0, 0
        self.is_mute = False
        self._stage, self._act = stage, act

    def wrap(self, name: str, call: Call) -> Call:
        def either(work: Work) -> AsyncGenerator[Piece, None]:
            if not self.is_on or name != self._stage:
                return call(work)
            self.num_calls += 1
            return self._act(self, call, work)

        return either


async def go_on_otherwise(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    async with aclosing(call(work)) as pieces:
        async for piece in pieces:
            yield replace(piece, items=piece.items + fault.num_calls, is_last=False)
            raise LostError("killed")


async def be_gone(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    raise LostError("ActorDiedError")
    yield


async def be_mute(fault: Fault, call: Call, work: Work) -> AsyncGenerator[Piece, None]:
    """Say nothing behind the first utterance."""
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


def test_a_replica_that_goes_on_otherwise_ends_the_request_with_an_error(cascade: Path) -> None:
    fault = Fault("coarse", go_on_otherwise)
    with apart(cascade, fault.wrap) as parts:
        fault.is_on = True
        with pytest.raises(GenerationError, match="replica of the stage coarse was lost, and another one does not go"):
            parts.engine.generate("Hello there.", **ASKED)
        parts.wait_until_idle()


def test_a_stage_that_loses_every_replica_ends_the_request_with_an_error(cascade: Path) -> None:
    fault = Fault("fine", be_gone)
    with apart(cascade, fault.wrap) as parts:
        fault.is_on = True
        with pytest.raises(EngineNotReadyError, match=r"the stage fine has lost 4 replicas .*: ActorDiedError"):
            parts.engine.generate("Hello there.", **ASKED)
    assert fault.num_calls == 4, "the codec's own replicas are not to blame"


def wait_until_left(fault: Fault) -> None:
    wait_until(lambda: 0 < fault.num_left == fault.num_calls - 1)


def test_a_request_whose_time_is_over_ends_though_a_stage_says_nothing(
    cascade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault("codec", be_mute)
    with apart(cascade, fault.wrap, request_timeout_s=1000, **SHORT) as parts:
        fault.is_on, ledger = True, parts.engine._running.synthesizer.core.ledger
        late = ledger.late
        monkeypatch.setattr(ledger, "late", lambda now: late(now + 1000 * fault.is_mute))
        with pytest.raises(RequestTimeoutError, match="not finished in time"):
            parts.engine.generate(TEXT, voice="one", **ASKED)
        wait_until_left(fault)
        parts.wait_until_idle()


def test_a_listener_who_leaves_takes_the_work_of_all_stages_along(cascade: Path) -> None:
    fault = Fault("semantic", be_mute)
    with apart(cascade, fault.wrap, **SHORT) as parts:
        fault.is_on = True
        listening = parts.engine.stream(TEXT, voice="one", **ASKED)
        next(listening)
        listening.close()
        wait_until_left(fault)
        for _ in range(20):  # or before any stage has heard of it
            parts.engine.stream(TEXT, voice="one", **ASKED).close()  # type: ignore[attr-defined]
        parts.wait_until_idle()


def test_stopping_ends_what_is_being_spoken_with_an_error(cascade: Path) -> None:
    with apart(cascade) as parts:
        listening = parts.engine.stream(TEXT * 10, **ASKED)
        next(listening)

        parts.engine.stop(drain=False)

        with pytest.raises(EngineNotReadyError, match="was stopped while this was being spoken"):
            list(listening)


@pytest.mark.parametrize(
    "error", [CapacityError("too long"), QueueFullError(3, 2, 1.5), ParameterError("top_p", "7"), LostError("killed")]
)
def test_an_error_reaches_another_process_as_what_it_is(error: Exception) -> None:
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
