"""The decoder with an inverse Fourier transform gives the same samples in chunks, in batches, compiled and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from kernel_checks import needs_gpu
from s1_mini.codecs.causal.channels_last import ChannelsLastDecoder
from s1_mini.codecs.causal.costs import codec_operations, stream_bytes, widest
from s1_mini.codecs.causal.fourier import OVERLAP, FourierDecoder, SpectralHead, overlap_add
from s1_mini.codecs.causal.stage import CausalDecoder, call_limits
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import build_codec, open_dac
from s1_mini.codecs.stream_state import StreamState
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks, Spec
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.s1 import weights as s1_weights
from s1_mini.families.s1.random import RECIPES, TINY_CODEC, TINY_MODEL, Recipe, random_codec, write_random_checkpoint
from s1_mini.packaging.write import convert_checkpoint
from s1_mini.types import SamplingParams

if TYPE_CHECKING:
    from s1_mini.codecs.causal.compiled import CompiledDecoder

pytestmark = pytest.mark.usefixtures("no_grad")

BOOKS, FRAMES = 10, 9
CUTS = [(0, 1), (1, 2), (2, 5), (5, 9)]
# Eight spectra per frame after a transposed convolution; one spectrum per frame, so that rows of tiles are padded.
EIGHT: dict[str, Any] = {"decoder_dim": 24, "decoder_rates": [2, 256], "decoder_layers": 2, "decoder_expansion": 2}
ONE: dict[str, Any] = EIGHT | {"decoder_rates": [512], "downsample_factor": [1], "decoder_dim": 30}
sizes = pytest.mark.parametrize("sizes", [EIGHT, ONE], ids=["eight spectra a frame", "one"])


def build(sizes: dict[str, Any], dtype: torch.dtype = torch.float32, device: str = "cpu") -> Dac:
    recipe = Recipe(TINY_MODEL, TINY_CODEC | sizes)
    config, tensors = DacConfig.from_json(recipe.codec), random_codec(recipe)
    return build_codec(config, tensors, encodes=True, dtype=dtype, device=torch.device(device), source="test")


@cache
def one() -> Dac:
    return build(ONE)


@cache
def eight() -> Dac:
    return build(EIGHT)


def codec_of(sizes: dict[str, Any]) -> Dac:
    return one() if sizes is ONE else eight()


def random_codes(rows: int = 1, frames: int = FRAMES) -> Tensor:
    return torch.randint(0, 32, (rows, BOOKS, frames), generator=torch.Generator().manual_seed(frames))


def in_float64(codec: Dac, codes: Tensor) -> Tensor:
    """Decode codes as one sum of cosines per spectrum, in float64."""
    wide, state = deepcopy(codec).double(), StreamState()
    *layers, head, bound = cast(FourierDecoder, wide.decoder).model
    assert isinstance(head, SpectralHead)
    x = wide.quantizer.upsample(wide.frames(codes, state), state)
    for layer in layers:
        x = layer(x, state)
    logarithms, phases = head.linear(head.norm(x.transpose(1, 2))).chunk(2, dim=-1)
    size, hop = head.size, head.hop
    frequency, sample = torch.arange(size // 2 + 1), torch.arange(size)
    weight = torch.full((size // 2 + 1,), 2.0, dtype=torch.float64)
    weight[0] = weight[-1] = 1
    angles = 2 * torch.pi / size * torch.outer(sample, frequency).double()
    out = torch.zeros(len(codes), (x.shape[-1] + OVERLAP - 1) * hop, dtype=torch.float64)
    shape = (1 - (2 * torch.pi / size * sample.double()).cos()) / 2 / 1.5
    for step in range(x.shape[-1]):
        waves = (angles + phases[:, step, None]).cos() * (weight * logarithms[:, step].exp() / size).unsqueeze(1)
        out[:, step * hop : step * hop + size] += waves.sum(-1) * shape
    return cast(Tensor, bound(out[:, : x.shape[-1] * hop]))


@sizes
def test_samples_are_sums_of_windowed_cosines(sizes: dict[str, Any]) -> None:
    codec, codes = codec_of(sizes), random_codes(2, frames=3)
    expected = in_float64(codec, codes)

    assert expected.abs().max() > 0.05
    torch.testing.assert_close(codec.decode(codes).double(), expected, rtol=0, atol=1e-5)


def test_overlapping_windows_add_up_to_torchs_inverse_of_the_same_spectra() -> None:
    head = SpectralHead(4, 16)
    spectra = torch.randn(2, 33, 20, dtype=torch.complex64)
    windows = torch.fft.irfft(spectra.transpose(1, 2), head.size) * head.window(torch.float32)
    expected = torch.istft(spectra, head.size, 16, window=torch.hann_window(head.size), center=True)

    samples = overlap_add(torch.cat((torch.zeros(2, OVERLAP - 1, head.size), windows), dim=1), 16)

    inner = slice(2 * 16, 16 * 16)  # torch divides by the sum of the windows, which is smaller at both ends
    torch.testing.assert_close(samples[:, 2 * 16 :][:, inner], expected[:, inner])


@sizes
@pytest.mark.parametrize("cuts", [CUTS, [(at, at + 1) for at in range(FRAMES)], [(0, 7), (7, 9)]])
def test_any_chunking_gives_the_same_samples(sizes: dict[str, Any], cuts: list[tuple[int, int]]) -> None:
    codec, codes = codec_of(sizes), random_codes(2)
    stream, row, device = codec.open(2), torch.tensor([1]), ChannelsLastDecoder(codec, 2)
    whole = codec.decode(codes)

    streamed = torch.cat([stream.push(codes[..., begin:end]) for begin, end in cuts], dim=-1)
    slotted = [device.push_slots(codes[:1, :, begin:end], row, torch.tensor([begin == 0])) for begin, end in cuts]

    torch.testing.assert_close(streamed, whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat(slotted, dim=-1), whole[:1], rtol=0, atol=2e-6)


def test_a_skipped_beginning_leaves_the_state_of_a_decoded_one() -> None:
    codec, codes = eight(), random_codes(frames=60)
    stream = codec.open(1)
    stream.skip(0, codes[0, :, :55])

    torch.testing.assert_close(stream.push(codes[..., 55:]), codec.decode(codes)[:, 55 * 2048 :], rtol=0, atol=1e-6)


# Turns of a batch: the frames that each row decodes. Rows begin at different times and change places.
TURNS: list[dict[int, tuple[int, int]]] = [
    {0: (0, 2)},
    {2: (0, 3), 0: (2, 5)},
    {1: (0, 4), 0: (5, 9)},
    {2: (3, 8), 1: (4, 9)},
    {2: (8, 9)},
]
Push = Callable[[Tensor, list[int], list[bool]], Tensor]  # decodes codes [n, K, F] of slots, which may begin


def in_turns(push: Push, codes: Tensor) -> Tensor:
    heard: list[list[Tensor]] = [[] for _ in codes]
    for turn in TURNS:
        frames = max(end - begin for begin, end in turn.values())
        block = torch.zeros(len(turn), BOOKS, frames, dtype=torch.int64)
        for at, (row, (begin, end)) in enumerate(turn.items()):
            block[at, :, : end - begin] = codes[row, :, begin:end]
        waves = push(block, list(turn), [begin == 0 for begin, _ in turn.values()])
        for (row, (begin, end)), wave in zip(turn.items(), waves, strict=True):
            heard[row].append(wave[: (end - begin) * len(wave) // frames])
    return torch.stack([torch.cat(parts) for parts in heard])


def test_rows_that_begin_at_different_times_sound_as_they_do_alone() -> None:
    codec, codes = eight(), random_codes(3)
    decoder = ChannelsLastDecoder(codec, 3)
    for past in decoder._pasts.tensors:
        past.fill_(torch.nan if past.is_floating_point() else 99)

    heard = in_turns(
        lambda block, slots, begins: decoder.push_slots(block, torch.tensor(slots), torch.tensor(begins)), codes
    )

    torch.testing.assert_close(heard, codec.decode(codes), rtol=0, atol=2e-6)


def test_a_saved_state_continues_in_another_slot() -> None:
    codec, codes = eight(), random_codes()
    decoder = ChannelsLastDecoder(codec, 2)
    decoder.push_slots(codes[..., :4], torch.tensor([0]), torch.tensor([True]))

    decoder.load(1, decoder.save(0))

    rest = decoder.push_slots(codes[..., 4:], torch.tensor([1]), torch.tensor([False]))
    torch.testing.assert_close(rest, codec.decode(codes)[:, 4 * 2048 :], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("dtype", "decibels"), [(torch.bfloat16, 30), (torch.float16, 48)])
def test_in_16_bits_the_spectra_keep_float32(dtype: torch.dtype, decibels: float) -> None:
    codes = random_codes()
    expected = in_float64(eight(), codes)

    decoder = ChannelsLastDecoder(build(EIGHT, dtype), 1)
    heard = decoder.push_slots(codes, torch.tensor([0]), torch.tensor([True]))

    assert heard.dtype == torch.float32
    assert 10 * torch.log10(expected.square().sum() / (heard - expected).square().sum()) >= decibels


def compiled(codec: Dac, slots: int) -> CompiledDecoder:
    pytest.importorskip("numba", reason="numba has no wheels for this platform")
    from s1_mini.codecs.causal.compiled import CompiledDecoder

    return CompiledDecoder(codec, slots)


def pushing(decoder: CompiledDecoder, places: Sequence[int]) -> Push:
    return lambda block, slots, begins: torch.from_numpy(
        decoder.push(block.numpy(), [places[slot] for slot in slots], begins)
    )


@sizes
def test_compiled_rows_have_the_bits_that_they_have_alone_and_in_other_chunks(sizes: dict[str, Any]) -> None:
    codec, codes = codec_of(sizes), random_codes(3)
    decoder = compiled(codec, 4)

    together = in_turns(pushing(decoder, [2, 0, 3]), codes)
    alone = [decoder.push(codes[row : row + 1].numpy(), [1], [True])[0] for row in range(3)]

    np.testing.assert_array_equal(together.numpy(), np.stack(alone))
    torch.testing.assert_close(together, codec.decode(codes), rtol=0, atol=2e-6)


def test_compiled_layers_read_the_eight_bit_weights_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s1_weights, "_MIN_QUANTIZED", 256)
    write_random_checkpoint(tmp_path / "plain", Recipe(TINY_MODEL, TINY_CODEC | EIGHT, num_semantic=64))
    convert_checkpoint(tmp_path / "plain", tmp_path / "int8", codec_precision="int8")
    plain, int8 = (open_dac(tmp_path / name, encodes=False) for name in ("plain", "int8"))
    codes = random_codes()
    decoder = compiled(int8, 1)

    heard = decoder.push(codes.numpy(), [0], [True])

    assert decoder.formats == [
        "blocks int8 int8",
        "convolve float32",  # transposed convolutions, whose scales belong to inputs
        "convolve int8",
        "spectra int8",
        "window_layers int8 int8 int8 int8",
    ]
    np.testing.assert_allclose(heard, int8.decode(codes).numpy(), atol=1e-5)
    assert np.abs(heard - plain.decode(codes).numpy()).max() < 0.1 * np.abs(heard).max()


def stage_of(codec: Dac, *, rows: Sequence[int], invariant: bool = False) -> CausalDecoder:
    policy = Chunks(
        name="codec",
        input=Spec("int64", (BOOKS,)),
        output=Spec("float32"),
        slots=3,
        sizes={"ttfa": (1, 2, 4)},
        rows=rows,
        max_items=64,
    )
    return CausalDecoder(codec, policy, number=1, batch_invariant=invariant)


def step(stage: CausalDecoder, codes: Tensor, frames: range, slots: Sequence[int]) -> list[np.ndarray]:
    """Decode the same frames of codes [n, K, F] in `slots`."""
    conditions, rate = Conditions(SamplingParams(), seed=0, utterance=0, max_steps=99, voice={}), stage._rate
    begins = [
        Begin(slot, frames.start, part.T.numpy(), None, frames.start * rate, 1, 4, 0, len(frames), conditions)
        for slot, part in zip(slots, codes[..., frames.start : frames.stop], strict=True)
    ]
    stage.begin(begins)
    result = stage.step(slots, 4)()
    return [np.asarray(wave)[: len(frames) * rate] for wave in result.values]


def test_a_stream_keeps_the_decoder_that_it_began_with_and_the_next_has_the_compiled_one() -> None:
    pytest.importorskip("numba", reason="numba has no wheels for this platform")
    codec, codes = eight(), random_codes(2, 7)
    stage, expected = stage_of(codec, rows=(1, 2)), codec.decode(codes).numpy()
    work = stage.compilable()
    assert work is not None

    first = step(stage, codes[:1], range(4), [0])
    work.use()
    mixed = step(stage, codes, range(3), [0, 1])
    mixed = [step(stage, codes[:1], range(4), [2])[0], step(stage, codes[:1], range(4, 7), [0])[0], mixed[1]]
    both = step(stage, codes, range(4), [0, 2]), step(stage, codes, range(4, 7), [0, 2])

    np.testing.assert_allclose(first[0], expected[0, : 4 * 2048], atol=1e-5)
    np.testing.assert_allclose(mixed[0], expected[0, : 4 * 2048], atol=1e-5)
    np.testing.assert_array_equal(mixed[0], both[0][0])
    np.testing.assert_allclose(np.concatenate(both, axis=1), expected, atol=1e-5)


def test_on_a_cpu_a_call_may_decode_several_streams_of_few_frames() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    residual = build({})

    assert call_limits(eight(), cpu, 6) == ((1, 2, 4, 6), 32)
    assert call_limits(residual, cpu, 6) == ((1,), 400)
    assert call_limits(eight(), gpu, 6) == call_limits(residual, gpu, 6) == ((1, 2, 4, 6), 400)


def test_the_counted_state_is_what_a_stream_allocates_and_the_widest_activation_is_known() -> None:
    codec, state = build(EIGHT), StreamState()

    codec.push(random_codes(), state)

    assert stream_bytes(Dac(codec.config, encodes=False)) == state.num_bytes
    assert widest(codec) == 8 * 2 * (4 * 256 + 2), "eight spectra of 1026 float32 numbers, as numbers of 16 bits"
    assert codec_operations(codec) > 2 * 8 * (2 * 2 * 24 * 48 + 24 * 1026)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decoder_rates": [2, 255]}, r"decoder_rates \(2, 255\) must have the same product"),
        ({"decoder_rates": [2, 2048]}, "decoder_rates=.* integers from 1 to 1024"),
        ({"decoder_layers": -1}, "decoder_layers=-1 must be an integer from 0 to 256"),
        ({"decoder_layers": 1.0}, "decoder_layers=1.0 must be an integer from 0 to 256"),
        ({"decoder_expansion": 17}, "decoder_expansion=17 must be a positive integer up to 16"),
    ],
)
def test_an_invalid_config_is_refused_with_what_is_allowed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=message):
        DacConfig.from_json(RECIPES["tiny"].codec | EIGHT | given)


def test_weights_of_residual_convolutions_do_not_fit() -> None:
    config, residual = DacConfig.from_json(RECIPES["tiny"].codec | EIGHT), random_codec(RECIPES["tiny"])
    with pytest.raises(CheckpointMismatchError, match=r"decoder\.model"):
        build_codec(config, residual, encodes=True, dtype=torch.float32, device=torch.device("cpu"), source="test")


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(("dtype", "decibels"), [(torch.float32, 90), (torch.bfloat16, 30), (torch.float16, 48)])
def test_captured_calls_on_a_gpu_give_the_samples_of_the_cpu(
    dtype: torch.dtype, decibels: float, invariant: bool
) -> None:
    codes = random_codes(2, 8)
    expected = in_float64(eight(), codes).numpy()
    stage = stage_of(build(EIGHT, dtype, "cuda"), rows=(1, 2), invariant=invariant)
    stage.capture()

    alone = [[step(stage, codes[:1], frames, [1])[0] for frames in (range(4), range(4, 8))] for _ in range(2)]
    both = [step(stage, codes, frames, [2, 0]) for frames in (range(4), range(4, 8))]

    together = np.concatenate([np.stack(waves) for waves in both], axis=1)
    np.testing.assert_array_equal(alone[0], alone[1])
    if invariant:
        np.testing.assert_array_equal(np.concatenate(alone[0]), together[0])
    for heard, waves in ((together, expected), (np.concatenate(alone[0])[None], expected[:1])):
        assert 10 * np.log10(np.square(waves).sum() / np.square(heard - waves).sum()) >= decibels
