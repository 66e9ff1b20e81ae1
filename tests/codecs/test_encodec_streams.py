"""Encodec streams, as an engine stage and as file lanes, match isolated whole-file output, captured or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmark.encodec_lanes import DecodeLanes, EncodeLanes, Lanes
from kernel_checks import needs_gpu, on_gpu
from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.stage import EncodecDecoder, chunk_sizes
from s1_mini.codecs.encodec.stream_state import StreamChunk
from s1_mini.codecs.encodec.weights import TINY, random_encodec
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks, Progress, Spec
from s1_mini.exceptions import ConfigurationError
from s1_mini.types import SamplingParams

pytestmark = pytest.mark.usefixtures("no_grad")

BOOKS, LANES, SLOTS = 8, 4, 4
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}  # a GPU sums in another order than the CPU reference
RATE = TINY.samples_per_frame
# Lengths: many chunks and one, whole chunks and frames, below a frame and below the mirrored beginning.
LENGTHS = (30_000, 1, 9_600, 4_801, 320, 14_399, 2_239, 100, 9_601, 25_000, 5_000, 7_777)
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])


class LatentLanes(Lanes):
    """Encodes waves to latents before quantization."""

    def __init__(self, codec: Encodec, *, lanes: int, frames: int) -> None:
        inputs, outputs = ((frames * RATE,), torch.float32), ((TINY.hidden_size, frames), torch.float32)
        super().__init__(codec, lanes=lanes, frames=frames, inputs=inputs, outputs=outputs)

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        return self._codec.latents(x, chunk)


@pytest.fixture
def codec(device: str) -> Iterator[Encodec]:
    codec = random_encodec(TINY).to(device)
    codec.prepare()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield codec


CPU = random_encodec(TINY)
NOISE = np.random.default_rng(0)
WAVES = [(0.2 * NOISE.standard_normal(length)).astype(np.float32) for length in LENGTHS]
CODES = [NOISE.integers(0, 1024, (BOOKS, frames)) for frames in (90, 1, 30, 6, 7, 15, 8, 31, 44, 2)]


def decode(codes: np.ndarray) -> np.ndarray:
    return CPU.decode(torch.from_numpy(codes.copy()).unsqueeze(0))[0].numpy()


def latents(wave: np.ndarray) -> np.ndarray:
    return CPU.latents(torch.from_numpy(wave).unsqueeze(0))[0].numpy()


def is_near_tie(wave: np.ndarray, codes: np.ndarray, book: int, frame: int, share: float) -> bool:
    """Return whether another codebook entry is almost as near as that of `codes`."""
    rest = torch.from_numpy(latents(wave)[:, frame])
    for at in range(book):
        rest = rest - CPU.quantizer.books[at].embed[codes[at, frame]]
    first, second = CPU.quantizer.books[book].distances(rest[None, None])[0, 0].sort().values[:2]
    return bool(second - first <= share * (1 + first))


@devices
@pytest.mark.parametrize("frames", [7, 15, 40])
def test_files_in_lanes_are_encoded_as_they_are_alone(codec: Encodec, frames: int, device: str) -> None:
    lanes = EncodeLanes(codec, lanes=LANES, frames=frames, codebooks=BOOKS)
    inner = LatentLanes(codec, lanes=LANES, frames=frames)
    lanes.capture()
    inner.capture()

    vectors, codes = inner.all(WAVES), lanes.all(WAVES)

    same = total = 0
    for wave, vector, code in zip(WAVES, vectors, codes, strict=True):
        alone = CPU.encode(torch.from_numpy(wave).unsqueeze(0), BOOKS)[0].numpy()
        assert code.shape == (BOOKS, -(-len(wave) // RATE))
        assert np.abs(vector - latents(wave)).max() <= TOLERANCE[device]
        for frame in np.flatnonzero((code != alone).any(0)):
            book = int(np.flatnonzero(code[:, frame] != alone[:, frame])[0])  # later codebooks encode another residual
            assert is_near_tie(wave, alone, book, frame, 10 * TOLERANCE[device])
        same, total = same + (code == alone).sum(), total + code.size
    assert same / total >= 0.998


@devices
@pytest.mark.parametrize("frames", [7, 15, 40])
def test_files_in_lanes_are_decoded_as_they_are_alone(codec: Encodec, frames: int, device: str) -> None:
    lanes = DecodeLanes(codec, lanes=LANES, frames=frames, codebooks=BOOKS)
    lanes.capture()

    for codes, wave in zip(CODES, lanes.all(CODES), strict=True):
        assert np.abs(wave - decode(codes)).max() <= TOLERANCE[device]


def test_neither_neighbours_nor_order_nor_an_earlier_run_change_a_result() -> None:
    lanes = DecodeLanes(CPU, lanes=LANES, frames=10, codebooks=BOOKS)
    expected = lanes.all(CODES)

    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(CODES))
        results = dict(lanes.run(CODES[number] for number in order))
        assert len(results) == len(CODES)
        assert all(np.abs(results[at] - expected[number]).max() <= 1e-6 for at, number in enumerate(order))


def test_a_file_that_is_not_finite_affects_no_other_not_even_the_next_in_its_lane() -> None:
    lanes = EncodeLanes(CPU, lanes=1, frames=10, codebooks=BOOKS)
    wave, broken = WAVES[0], np.full(5_000, np.nan, np.float32)

    first, _, last = lanes.all([wave, broken, wave])

    assert np.array_equal(first, last)


def test_an_aborted_run_does_not_affect_the_next() -> None:
    lanes = DecodeLanes(CPU, lanes=LANES, frames=10, codebooks=BOOKS)
    expected = lanes.all(CODES)

    for _ in lanes.run(CODES):
        break

    assert all(np.array_equal(*pair) for pair in zip(lanes.all(CODES), expected, strict=True))


def test_files_are_requested_when_a_lane_is_free_and_yielded_when_they_end() -> None:
    asked: list[int] = []

    def ask() -> Iterator[np.ndarray]:
        for number, wave in enumerate(WAVES[index] for index in (0, 4, 2, 3, 5, 6, 7, 8)):
            asked.append(number)
            yield wave

    lanes = EncodeLanes(CPU, lanes=2, frames=10, codebooks=BOOKS)
    number, _ = next(lanes.run(ask()))

    assert number == 1  # the short file; the long one before it is still in its lane
    assert asked == [0, 1, 2]  # the next call has already begun


def test_after_the_first_call_no_memory_is_allocated_for_states_and_chunks() -> None:
    lanes = DecodeLanes(CPU, lanes=LANES, frames=10, codebooks=BOOKS)
    lanes.all(CODES[:1])

    def addresses() -> list[int]:
        host = [each for call in lanes._calls for each in (*call.inputs, call.output)]
        return [each.data_ptr() for each in (*lanes._state._past.values(), *lanes._inputs, lanes._output, *host)]

    before = addresses()
    lanes.all(CODES)

    assert addresses() == before
    assert len(before) > 20


@on_gpu
@pytest.mark.parametrize("device", ["cuda"])
def test_after_the_capture_a_gpu_allocates_nothing(codec: Encodec) -> None:
    encode = EncodeLanes(codec, lanes=LANES, frames=10, codebooks=BOOKS)
    decode = DecodeLanes(codec, lanes=LANES, frames=10, codebooks=BOOKS)
    encode.capture()
    decode.capture()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]

    encode.all(WAVES)
    decode.all(CODES)

    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_empty_files_give_empty_results() -> None:
    lanes = EncodeLanes(CPU, lanes=2, frames=10, codebooks=BOOKS)
    nothing, wave = np.zeros(0, np.float32), WAVES[3]

    assert [each.shape for each in lanes.all([nothing, wave, nothing])] == [(BOOKS, 0), (BOOKS, 16), (BOOKS, 0)]
    assert lanes.all([]) == []


def test_invalid_lanes_and_files_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"4 lanes of 6 frames are not possible: .* 7 frames"):
        EncodeLanes(CPU, lanes=4, frames=6, codebooks=BOOKS)
    with pytest.raises(ConfigurationError, match="0 lanes"):
        DecodeLanes(CPU, lanes=0, frames=10, codebooks=BOOKS)
    with pytest.raises(ValueError, match=r"file 1 has shape \[2, 9\]; expected \[8, length\]"):
        DecodeLanes(CPU, lanes=1, frames=10, codebooks=BOOKS).all([CODES[0], np.zeros((2, 9), np.int64)])


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
