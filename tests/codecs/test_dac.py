"""The DAC codec: streamed output equals whole output for any chunking; limits and clamps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s1_mini.codecs.causal.channels_last import ChannelsLastDecoder
from s1_mini.codecs.causal.layers import PADDING
from s1_mini.codecs.causal.stage import CausalDecoder
from s1_mini.codecs.dac import model as dac_model
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import build_codec, open_dac, translate
from s1_mini.core.stage import Chunks, Spec
from s1_mini.exceptions import CapacityError, CheckpointMismatchError
from s1_mini.families.s1.random import RECIPES, random_codec

SCHEDULES = {"ttfa": [1, 2, 4, 8, 12], "balanced": [4, 4, 8, 16, 25], "frame by frame": [1], "one call": [40]}


def build(**sizes: float) -> Dac:
    config = DacConfig.from_json(RECIPES["tiny"].codec | sizes)
    tensors = random_codec(RECIPES["tiny"])
    return build_codec(config, tensors, encodes=True, dtype=torch.float32, device=torch.device("cpu"), source="test")


@pytest.mark.usefixtures("no_grad")
def test_a_codec_may_amplify_and_limit_its_samples() -> None:
    codes, row = random_codes(6), torch.tensor([0])
    drive, ceiling = 12.0, 0.5
    codec = build(drive=drive, ceiling=ceiling)
    expected = ceiling * (drive * shared().decode(codes).atanh()).tanh()

    streams = [ChannelsLastDecoder(codec, 2, chained=chained) for chained in (False, True)]
    for heard in (codec.decode(codes), *(stream.push_slots(codes, row, row == 0) for stream in streams)):
        torch.testing.assert_close(heard, expected, rtol=0, atol=1e-5)
        assert 0.2 < heard.abs().max() < ceiling


@pytest.mark.parametrize("given", [{"drive": 0}, {"ceiling": 1.5}, {"drive": "1"}, {"ceiling": True}, {"drive": 1e300}])
def test_an_invalid_bound_is_refused_with_the_allowed_range(given: dict[str, Any]) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"must be a number above 0 and up to (16|1)$"):
        DacConfig.from_json(given)


@cache
def shared() -> Dac:
    """One codec for all tests that do not modify it."""
    return build()


def random_codes(frames: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 32, (rows, 10, frames), generator=torch.Generator().manual_seed(seed))


def in_chunks(codec: Dac, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    stream, waves, position = codec.open(len(codes)), [], 0
    while position < codes.shape[-1]:
        size = sizes[min(len(waves), len(sizes) - 1)]
        waves.append(stream.push(codes[..., position : position + size]))
        position += size
    return torch.cat(waves, dim=-1)


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_stream_gives_the_samples_of_one_call(name: str, oracle: Path) -> None:
    """Longer than the attention window and the receptive field; ≤ 1e-5 in fp32 because sums are ordered differently."""
    codec, codes = open_dac(oracle, encodes=False), random_codes(40)

    streamed = in_chunks(codec, codes, SCHEDULES[name])

    assert streamed.shape == (1, 40 * 2048)
    assert (streamed - codec.open(1).push(codes)).abs().max() <= 1e-5


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_any_chunking_gives_the_same_samples(sizes: list[int]) -> None:
    with torch.inference_mode():
        codes = random_codes(30)

        streamed = in_chunks(shared(), codes, sizes)

        assert (streamed - shared().decode(codes)).abs().max() <= 1e-5


@pytest.mark.usefixtures("no_grad")
def test_rows_of_a_batch_are_independent() -> None:
    codes = random_codes(12, rows=3)

    together = shared().decode(codes)

    for row in range(3):
        assert (together[row] - shared().decode(codes[row : row + 1])[0]).abs().max() <= 1e-5


@pytest.mark.usefixtures("no_grad")
def test_encoding_in_blocks_gives_the_codes_of_one_block(monkeypatch: pytest.MonkeyPatch, tone: object) -> None:
    wave = torch.from_numpy(tone)
    whole = shared().encode(wave)

    monkeypatch.setattr(dac_model, "ENCODE_BLOCK", 5)

    assert torch.equal(shared().encode(wave), whole)
    assert whole.shape == (10, 22)  # 44100 samples; the last frame is padded


@pytest.mark.usefixtures("no_grad")
def test_a_step_of_encoding_takes_two_seconds_of_a_long_recording_at_most() -> None:
    """A client that sends a long recording and leaves delays others by the step in progress."""
    blocks = list(shared().encode_by_blocks(torch.zeros(20 * 44_100)))

    assert len(blocks) >= 10


@pytest.mark.usefixtures("no_grad")
def test_codes_beyond_a_codebook_select_its_last_entry() -> None:
    """Upstream clamps them; the model's residual head may be wider than the codebooks."""
    high, last = random_codes(4), random_codes(4)
    high[:, 3], last[:, 3] = 1000, 31

    assert torch.equal(shared().decode(high), shared().decode(last))


@pytest.mark.usefixtures("no_grad")
def test_a_stream_longer_than_the_codec_reaches_is_refused() -> None:
    codec = build(q_block_size=16, enc_block_size=64)
    stream = codec.open(1)
    stream.push(random_codes(16))

    with pytest.raises(CapacityError, match=r"17 frames .* exceed the codec's limit of 16"):
        stream.push(random_codes(1))
    with pytest.raises(CapacityError, match="Split the text or shorten the reference"):
        codec.encode(torch.zeros(17 * 2048))


@pytest.mark.long
@pytest.mark.usefixtures("no_grad")
def test_the_full_size_codec_streams_exactly_too() -> None:
    """185 M parameters with random weights; all schedules agree with one call, ≤ 1e-5."""
    tensors = translate(random_codec(RECIPES["full"]), encodes=False)
    codec = build_codec(
        DacConfig(), tensors, encodes=False, dtype=torch.float32, device=torch.device("cpu"), source="test"
    )
    codes = random_codes(15)
    whole = codec.open(1).push(codes)

    for name in SCHEDULES.keys() - {"one call"}:
        assert (in_chunks(codec, codes, SCHEDULES[name]) - whole).abs().max() <= 1e-5


def test_a_decoder_only_codec_has_half_the_weights_and_no_encoder(tiny: Path) -> None:
    whole, half = (sum(p.numel() for p in open_dac(tiny, encodes=e).parameters()) for e in (True, False))

    assert half < 0.6 * whole


@pytest.mark.parametrize(
    "sizes",
    [
        *({"q_dim": 64}, {"decoder_rates": [8, 8, 4, 4]}, {"n_codebooks": 0}, {"encoder_rates": "fast"}),
        *({"q_n_head": 5}, {"post_n_head": 2, "post_n_local_heads": 4}, {"post_n_layer": 0}),
    ],
)
def test_an_invalid_codec_config_is_refused(sizes: dict[str, object]) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"codec_config\.json"):
        DacConfig.from_json(RECIPES["tiny"].codec | sizes)


@pytest.mark.usefixtures("no_grad")
def test_rows_that_are_decoded_in_turn_sound_as_they_do_alone() -> None:
    codec = build()
    codes = random_codes(9, rows=3)
    stream, heard = codec.open(3), {row: [torch.zeros(0)] for row in range(3)}

    for turn in ({0: (0, 2)}, {2: (0, 3), 0: (2, 5)}, {1: (0, 9)}, {2: (3, 9)}, {0: (5, 9)}):
        block = torch.stack([codes[row, :, begin:end] for row, (begin, end) in turn.items()])
        for row, wave in zip(turn, stream.push(block, list(turn)), strict=True):
            heard[row].append(wave)

    for row, parts in heard.items():
        assert torch.allclose(torch.cat(parts), codec.decode(codes[row : row + 1])[0], atol=1e-6)


@pytest.mark.usefixtures("no_grad")
def test_a_row_that_is_reset_remembers_nothing() -> None:
    codec = build()
    codes = random_codes(6, rows=2)
    stream = codec.open(2)
    stream.push(random_codes(4, rows=2, seed=1))

    stream.reset(1)

    assert torch.equal(stream.push(codes[1:], [1])[0], codec.open(1).push(codes[1:])[0])


chained = pytest.mark.parametrize("chained", [False, True])


def decode_where(turns: list[dict[int, tuple[int, int]]], codes: torch.Tensor, *, chained: bool) -> torch.Tensor:
    """Decode rows in turn in batches of four, padded with a scratch row: samples [rows, T] of all."""
    rows, stream = len(codes), ChannelsLastDecoder(shared(), 4, chained=chained)
    heard = [[torch.zeros(0)] for _ in range(rows)]
    for turn in turns:
        slot_ids, reset_mask = torch.full((4,), rows), torch.ones(4, dtype=torch.bool)
        frames = next(end - begin for begin, end in turn.values())
        block = torch.zeros(4, codes.shape[1], frames, dtype=torch.int64)
        for index, (row, (begin, end)) in enumerate(turn.items()):
            slot_ids[index], reset_mask[index], block[index] = row, begin == 0, codes[row, :, begin:end]
        for row, wave in zip(turn, stream.push_slots(block, slot_ids, reset_mask), strict=False):
            heard[row].append(wave)
    return torch.stack([torch.cat(parts) for parts in heard])


@pytest.mark.usefixtures("no_grad")
@chained
def test_rows_selected_by_a_tensor_sound_as_alone_in_any_batch(chained: bool) -> None:
    codes = random_codes(9, rows=3)
    turns = [{0: (0, 2)}, {2: (0, 3), 0: (2, 5)}, {1: (0, 4), 0: (5, 9)}, {2: (3, 8), 1: (4, 9)}, {2: (8, 9)}]

    assert (decode_where(turns, codes, chained=chained) - shared().decode(codes)).abs().max() <= 1e-5


@pytest.mark.usefixtures("no_grad")
@chained
def test_a_reset_row_keeps_no_earlier_state_even_if_it_was_not_finite(chained: bool) -> None:
    codes, stream = random_codes(6), ChannelsLastDecoder(shared(), 2, chained=chained)
    row, reset_mask = torch.tensor([0]), torch.tensor([True])
    stream.push_slots(random_codes(5, seed=1), row, reset_mask)
    pasts = list(remembered(stream))
    for past in pasts:
        past.fill_(torch.nan if past.is_floating_point() else 99)

    parts = [stream.push_slots(codes[..., :2], row, reset_mask), stream.push_slots(codes[..., 2:], row, ~reset_mask)]

    assert len(pasts) == 1 + 2 + 2 + 2 + 4 * 4, "positions, transformer, upsampling, both ends, blocks"
    assert (torch.cat(parts, dim=-1) - shared().decode(codes)).abs().max() <= 1e-5


def remembered(part: object) -> Iterator[torch.Tensor]:
    """All tensors that a decoder keeps between chunks."""
    if isinstance(part, list | tuple):
        for each in part:
            yield from remembered(each)
    elif type(part).__module__ == ChannelsLastDecoder.__module__:
        for name, value in vars(part).items():
            if name in {"past", "_seen"} and isinstance(value, torch.Tensor):
                yield value
            else:
                yield from remembered(value)


@pytest.mark.usefixtures("no_grad")
def test_a_last_chunk_may_be_filled_up_even_at_the_end_of_the_longest_stream() -> None:
    codec, codes = build(q_block_size=16, enc_block_size=64), random_codes(16)
    stream, row = ChannelsLastDecoder(codec, 2), torch.tensor([0])
    filled = torch.cat((codes[..., 12:], torch.zeros(1, 10, 21, dtype=torch.int64)), dim=-1)

    first = stream.push_slots(codes[..., :12], row, torch.tensor([True]))
    last = stream.push_slots(filled, row, torch.tensor([False]))[..., : 4 * 2048]

    assert (torch.cat((first, last), dim=-1) - codec.decode(codes)).abs().max() <= 1e-5


@pytest.mark.usefixtures("no_grad")
def test_capturing_the_calls_of_a_stage_never_reaches_the_end_of_the_longest_stream() -> None:
    codec, frame, wave = build(q_block_size=16, enc_block_size=64), Spec("int64", (10,)), Spec("float32")
    policy = Chunks(name="codec", input=frame, output=wave, slots=2, sizes={"ttfa": (8,)}, max_items=8)
    stage = CausalDecoder(codec, policy, number=1)
    stage.make_graphs()
    assert stage._graphs is not None

    for _ in range(1 + (16 + PADDING) // 8):  # as warm-ups of many sizes do: with zeroed buffers
        stage._graphs._call((1, 8), torch.zeros(1, 8, 10, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64))
