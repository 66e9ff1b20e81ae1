"""Encodec streams of an engine stage match isolated whole-file output, captured or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from kernel_checks import needs_gpu
from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.stage import EncodecDecoder, chunk_sizes
from s1_mini.codecs.encodec.weights import TINY, random_encodec
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks, Progress, Spec
from s1_mini.exceptions import ConfigurationError
from s1_mini.types import SamplingParams

pytestmark = pytest.mark.usefixtures("no_grad")

BOOKS, SLOTS = 8, 4
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}  # a GPU sums in another order than the CPU reference
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])


@pytest.fixture
def codec(device: str) -> Iterator[Encodec]:
    codec = random_encodec(TINY).to(device)
    codec.prepare()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield codec


CPU = random_encodec(TINY)


def decode(codes: np.ndarray) -> np.ndarray:
    return CPU.decode(torch.from_numpy(codes.copy()).unsqueeze(0))[0].numpy()


ASKED = Conditions(SamplingParams(), seed=0, utterance=0, max_steps=1, voice={})


def policy(*sizes: int, rows: Sequence[int] = (1, 2, 4)) -> Chunks:
    return Chunks(
        name="codec",
        input=Spec("int64", (BOOKS,), rate=75),
        output=Spec("float32", rate=24_000),
        slots=SLOTS,
        sizes=dict.fromkeys(("ttfa", "balanced", "throughput"), sizes),
        rows=rows,
        max_items=200,
    )


def random_codes(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1024, (frames, BOOKS))


def open_stage(plan: Chunks, *, is_captured: bool, device: str = "cpu") -> EncodecDecoder:
    """Build a stage; on a CPU its captured calls run eagerly."""
    codec = random_encodec(TINY).to(device)
    codec.prepare()
    stage = EncodecDecoder(codec, plan, number=1)
    if is_captured:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            stage.make_graphs()
    return stage


def speak(
    stage: EncodecDecoder, plan: Chunks, utterances: dict[int, np.ndarray], starts: dict[int, int] | None = None
) -> dict[int, np.ndarray]:
    """Decode utterances by slot, as the scheduler plans them; `starts` are the steps at which they begin."""
    progress = {slot: Progress(len(codes), True, 0, 0, 0, 0, "balanced") for slot, codes in utterances.items()}
    heard: dict[int, list[np.ndarray]] = {slot: [np.zeros(0, np.float32)] for slot in utterances}
    turn = 0
    while any(not plan.is_done(each) for each in progress.values()):
        units = {
            slot: unit
            for slot, each in progress.items()
            if turn >= (starts or {}).get(slot, 0) and (unit := plan.next_unit(each)) is not None
        }
        for size in {unit.size for unit in units.values()}:
            slots = [slot for slot, unit in units.items() if unit.size == size]
            for slot in slots:
                unit, inputs = units[slot], utterances[slot][units[slot].start : units[slot].stop]
                number, consumes = progress[slot].units, unit.consumes
                stage.begin([Begin(slot, number, inputs, None, 0, 1, size, 0, consumes, ASKED)])
            result = stage.step(slots, size)()
            assert result.valid == [True] * len(slots)
            for slot, samples, count in zip(slots, result.values, result.counts, strict=True):
                heard[slot].append(samples[:count])
                each = progress[slot]
                progress[slot] = each._replace(consumed=each.consumed + units[slot].consumes, units=each.units + 1)
        turn += 1
    return {slot: np.concatenate(parts) for slot, parts in heard.items()}


@devices
@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("chunk", [1, 8, 15, 75])
def test_a_stream_gives_the_samples_of_one_call_at_any_chunk(chunk: int, is_captured: bool, device: str) -> None:
    plan = policy(*chunk_sizes(TINY, (chunk,)), rows=(1,))
    stage = open_stage(plan, is_captured=is_captured, device=device)

    for frames in (1, 3, 6, 7, 8, 9, 80):  # one after the other in the same slot
        codes = random_codes(frames, seed=frames)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            streamed = speak(stage, plan, {0: codes})[0]
        assert np.abs(streamed - decode(codes.T)).max() <= TOLERANCE[device]


UTTERANCES = {0: random_codes(30, 1), 1: random_codes(5, 2), 2: random_codes(8, 3), 3: random_codes(21, 4)}


def test_utterances_of_a_batch_sound_to_the_bit_as_they_do_alone_on_a_cpu() -> None:
    plan = policy(7, 4, 10)
    together = speak(open_stage(plan, is_captured=False), plan, UTTERANCES, {2: 1, 3: 2})

    for slot, codes in UTTERANCES.items():
        assert np.array_equal(together[slot], speak(open_stage(plan, is_captured=False), plan, {slot: codes})[slot])


@devices
def test_captured_calls_filled_up_to_their_shapes_sound_as_they_do_alone(device: str) -> None:
    plan = policy(7, 4, 10)
    stage = open_stage(plan, is_captured=True, device=device)

    for starts in ({}, {2: 1, 3: 2}, {0: 3}):
        for slot, samples in speak(stage, plan, UTTERANCES, starts).items():
            assert np.abs(samples - decode(UTTERANCES[slot].T)).max() <= TOLERANCE[device]


def test_a_reset_slot_keeps_no_non_finite_state() -> None:
    plan = policy(7, 4, 10)
    stage = open_stage(plan, is_captured=False)
    speak(stage, plan, {0: UTTERANCES[0]})
    pasts = list(stage._state._past.values())
    assert len(pasts) == 2 + 2 + 4 + 4  # first and last convolution, LSTM, transposed ones, residual ones
    for past in pasts:
        past.fill_(torch.nan)

    assert np.abs(speak(stage, plan, {0: UTTERANCES[3]})[0] - decode(UTTERANCES[3].T)).max() <= 1e-5


def test_samples_that_are_not_finite_are_reported_for_their_slot() -> None:
    plan = policy(7)
    stage = open_stage(plan, is_captured=True)
    speak(stage, plan, {0: random_codes(7), 1: random_codes(7)})
    for slot in (0, 1):
        stage.begin([Begin(slot, slot, random_codes(7), None, 0, 1, 7, 0, 7, ASKED)])
    for past in stage._state._past.values():
        past[1] = torch.nan  # slot 1 continues from there, slot 0 begins

    assert stage.step([0, 1], 7)().valid == [True, False]


def test_a_stream_cannot_begin_with_less_than_its_first_samples_depend_on() -> None:
    assert chunk_sizes(EncodecConfig(), (1,)) == (7, 1)
    assert chunk_sizes(EncodecConfig(), (4, 8, 75)) == (7, 8, 75)
    assert chunk_sizes(EncodecConfig(), (8, 15)) == (8, 15)
    with pytest.raises(ConfigurationError, match=r"'codec': a first chunk of 4 frames is too small.* at least 7"):
        EncodecDecoder(CPU, policy(4, 8), number=1)
