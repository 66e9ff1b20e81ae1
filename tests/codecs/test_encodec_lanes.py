"""Files through fixed lanes: what each gives is what it gives alone, whoever is beside it, in memory made once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from s1_mini.codecs.encodec.carry import StreamChunk
from s1_mini.codecs.encodec.lanes import DecodeLanes, EncodeLanes, Lanes
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.weights import TINY, random_encodec
from s1_mini.exceptions import ConfigurationError

pytestmark = pytest.mark.usefixtures("no_grad")

BOOKS, LANES = 8, 4
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}  # a GPU's sums go another way than the CPU's that they are compared with
RATE = TINY.samples_per_frame
# Samples: of many chunks and of one, whole chunks and frames, shorter than a frame and than the mirrored beginning.
LENGTHS = (30_000, 1, 9_600, 4_801, 320, 14_399, 2_239, 100, 9_601, 25_000, 5_000, 7_777)
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])


class LatentLanes(Lanes):
    """Waves to what is quantized."""

    def __init__(self, codec: Encodec, *, lanes: int, frames: int) -> None:
        given, made = ((frames * RATE,), torch.float32), ((TINY.hidden_size, frames), torch.float32)
        super().__init__(codec, lanes=lanes, frames=frames, given=given, made=made)

    def compute(self, x: Tensor, chunk: StreamChunk) -> Tensor:
        return self._codec.latents(x, chunk)


@pytest.fixture
def codec(device: str) -> Iterator[Encodec]:
    codec = random_encodec(TINY).to(device)
    codec.prepare()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield codec


CPU = random_encodec(TINY)


def waves() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(0.2 * random.standard_normal(length)).astype(np.float32) for length in LENGTHS]


def latents(wave: np.ndarray) -> np.ndarray:
    return CPU.latents(torch.from_numpy(wave).unsqueeze(0))[0].numpy()


def files_of_codes() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(0, 1024, (BOOKS, frames)) for frames in (90, 1, 30, 6, 7, 15, 8, 31, 44, 2)]


def is_near_tie(wave: np.ndarray, codes: np.ndarray, book: int, frame: int, share: float) -> bool:
    """Whether another entry of a book is as near as that of `codes`, but for a small share."""
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

    vectors, codes = inner.all(waves()), lanes.all(waves())

    same = total = 0
    for wave, vector, code in zip(waves(), vectors, codes, strict=True):
        alone = CPU.encode(torch.from_numpy(wave).unsqueeze(0), BOOKS)[0].numpy()
        assert code.shape == (BOOKS, -(-len(wave) // RATE))
        assert np.abs(vector - latents(wave)).max() <= TOLERANCE[device]
        for frame in np.flatnonzero((code != alone).any(0)):
            book = int(np.flatnonzero(code[:, frame] != alone[:, frame])[0])  # later books code another rest
            assert is_near_tie(wave, alone, book, frame, 10 * TOLERANCE[device])
        same, total = same + (code == alone).sum(), total + code.size
    assert same / total >= 0.998


@devices
@pytest.mark.parametrize("frames", [7, 15, 40])
def test_files_in_lanes_are_decoded_as_they_are_alone(codec: Encodec, frames: int, device: str) -> None:
    lanes = DecodeLanes(codec, lanes=LANES, frames=frames, codebooks=BOOKS)
    lanes.capture()

    for codes, wave in zip(files_of_codes(), lanes.all(files_of_codes()), strict=True):
        assert np.abs(wave - CPU.decode(torch.from_numpy(codes)[None])[0].numpy()).max() <= TOLERANCE[device]


def test_neither_neighbours_nor_order_nor_an_earlier_run_change_a_result() -> None:
    files = files_of_codes()
    lanes = DecodeLanes(CPU, lanes=LANES, frames=10, codebooks=BOOKS)
    expected = lanes.all(files)

    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(files))
        results = dict(lanes.run(files[each] for each in order))
        assert len(results) == len(files)
        for at, number in enumerate(order):
            wave = results[at]
            assert np.abs(wave - expected[number]).max() <= 1e-6


def test_a_file_that_is_not_finite_harms_no_other_not_even_the_next_in_its_lane() -> None:
    lanes = EncodeLanes(CPU, lanes=1, frames=10, codebooks=BOOKS)
    wave, broken = waves()[0], np.full(5_000, np.nan, np.float32)

    first, _, last = lanes.all([wave, broken, wave])

    assert np.array_equal(first, last)


def test_a_run_that_was_given_up_changes_nothing_of_the_next() -> None:
    lanes = DecodeLanes(CPU, lanes=LANES, frames=10, codebooks=BOOKS)
    expected = lanes.all(files_of_codes())

    for _ in lanes.run(files_of_codes()):
        break

    assert all(np.array_equal(*pair) for pair in zip(lanes.all(files_of_codes()), expected, strict=True))


def test_files_are_asked_for_when_a_lane_is_free_and_given_when_they_are_over() -> None:
    asked: list[int] = []

    def ask() -> Iterator[np.ndarray]:
        for number, wave in enumerate(waves()[index] for index in (0, 4, 2, 3, 5, 6, 7, 8)):
            asked.append(number)
            yield wave

    lanes = EncodeLanes(CPU, lanes=2, frames=10, codebooks=BOOKS)
    number, _ = next(lanes.run(ask()))

    assert number == 1  # the short one; the long one before it is still in its lane
    assert asked == [0, 1, 2]  # the next call has begun by then


def test_after_the_first_call_no_memory_is_made_for_states_and_chunks() -> None:
    lanes = DecodeLanes(CPU, lanes=LANES, frames=10, codebooks=BOOKS)
    lanes.all(files_of_codes()[:1])

    def addresses() -> list[int]:
        host = [each for call in lanes._calls for each in (*call.inputs, call.output)]
        return [each.data_ptr() for each in (*lanes._carry._past.values(), *lanes._inputs, lanes._output, *host)]

    before, size = addresses(), lanes.num_bytes
    lanes.all(files_of_codes())

    assert addresses() == before
    assert lanes.num_bytes == size
    assert len(before) > 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("device", ["cuda"])
def test_after_the_capture_a_gpu_allocates_nothing(codec: Encodec) -> None:
    encode = EncodeLanes(codec, lanes=LANES, frames=10, codebooks=BOOKS)
    decode = DecodeLanes(codec, lanes=LANES, frames=10, codebooks=BOOKS)
    encode.capture()
    decode.capture()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]

    encode.all(waves())
    decode.all(files_of_codes())

    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_empty_files_give_empty_results() -> None:
    lanes = EncodeLanes(CPU, lanes=2, frames=10, codebooks=BOOKS)
    nothing, wave = np.zeros(0, np.float32), waves()[3]

    assert [each.shape for each in lanes.all([nothing, wave, nothing])] == [(BOOKS, 0), (BOOKS, 16), (BOOKS, 0)]
    assert lanes.all([]) == []


def test_lanes_that_cannot_be_and_files_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"4 lanes of 6 frames: .* 7 frames"):
        EncodeLanes(CPU, lanes=4, frames=6, codebooks=BOOKS)
    with pytest.raises(ConfigurationError, match="0 lanes"):
        DecodeLanes(CPU, lanes=0, frames=10, codebooks=BOOKS)
    with pytest.raises(ValueError, match=r"file 1 has shape \[2, 9\]; these lanes take \[8, length\]"):
        DecodeLanes(CPU, lanes=1, frames=10, codebooks=BOOKS).all([files_of_codes()[0], np.zeros((2, 9), np.int64)])
