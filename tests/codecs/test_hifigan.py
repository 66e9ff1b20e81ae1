"""The vocoder: windows match the samples of one call for any split, padding or memory layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.codecs.hifigan.model import HifiGan
from s1_mini.codecs.hifigan.stage import Vocoder, context_of
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks, Progress, Spec
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.types import ChunkProfile, SamplingParams
from s1_mini.weights.fit import fit, skeleton

pytestmark = pytest.mark.usefixtures("no_grad")

BINS, RATE = 6, 8
SIZES = {
    "model_in_dim": BINS,
    "upsample_initial_channel": 8,
    "upsample_rates": [4, 2],
    "upsample_kernel_sizes": [8, 4],
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3], [1, 2]],
}
ASKED = Conditions(SamplingParams(), 0, 0, 1, {})
CHUNKS: dict[ChunkProfile, tuple[int, ...]] = {"ttfa": (1, 2, 5), "balanced": (5,), "throughput": (20,)}


def build(seed: int = 0, **sizes: object) -> HifiGan:
    config = HifiGanConfig.from_json(SIZES | sizes)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, parameter in HifiGan(config).named_parameters():
        fan_in = parameter[0].numel() if parameter.dim() == 3 else 16
        tensors[name] = torch.randn(parameter.shape, generator=generator) * fan_in**-0.5
    tensors["scale"] = tensors["scale"].abs() + 0.5
    vocoder = skeleton(lambda: HifiGan(config))
    return fit(vocoder, tensors, source="test", dtype=torch.float32, device=torch.device("cpu"))


def mel(frames: int, seed: int = 0) -> Tensor:
    return torch.randn(frames, BINS, generator=torch.Generator().manual_seed(seed))


def policy(vocoder: HifiGan) -> Chunks:
    return Chunks(
        name="vocoder",
        input=Spec("float32", (BINS,)),
        output=Spec("float32"),
        slots=4,
        holds="unit",
        sizes=CHUNKS,
        context=context_of(vocoder),
        look_ahead=context_of(vocoder),
        rows=(1, 2, 4),
        max_items=40,
    )


def begins_of(policy: Chunks, frames: Tensor, profile: ChunkProfile) -> list[tuple[Begin, int]]:
    """All units of an utterance with their sizes, as the scheduler builds them."""
    made, consumed = [], 0
    while consumed < len(frames):
        unit = policy.next_unit(Progress(len(frames), True, consumed, consumed * RATE, len(made), 1, profile))
        assert unit is not None
        inputs = frames[unit.start : unit.stop].numpy()
        begin = Begin(0, len(made), inputs, None, 0, 1, unit.size, consumed - unit.start, unit.consumes, ASKED)
        made.append((begin, unit.size))
        consumed += unit.consumes
    return made


def streamed(stage: Vocoder, policy: Chunks, frames: Tensor, profile: ChunkProfile) -> np.ndarray:
    waves = []
    for begin, size in begins_of(policy, frames, profile):
        stage.begin([begin])
        result = stage.step([0], size)()
        assert result.valid == result.stops == [True]
        waves.append(result.values[0][: result.counts[0]])
    return np.concatenate(waves)


VOCODER = build()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.sampled_from(list(CHUNKS)), st.booleans())
def test_a_stream_gives_the_samples_of_one_call(count: int, profile: ChunkProfile, is_captured: bool) -> None:
    with torch.inference_mode():
        chunks, frames = policy(VOCODER), mel(count, count)
        stage = Vocoder(VOCODER, chunks, number=0)
        if is_captured:
            stage.make_graphs()

        wave = streamed(stage, chunks, frames, profile)

        whole = VOCODER.speak(frames).numpy()
        assert wave.shape == whole.shape == (count * RATE,)
        assert np.abs(wave - whole).max() <= 1e-5
        assert whole.std() > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_the_channels_last_layout_gives_the_same_samples(seed: int) -> None:
    vocoder, frames = build(seed), mel(30)
    whole = vocoder.speak(frames)

    vocoder.prepare()

    assert (vocoder.speak(frames) - whole).abs().max() <= 1e-5
    chunks = policy(vocoder)
    stage = Vocoder(vocoder, chunks, number=0)
    stage.make_graphs()
    assert np.abs(streamed(stage, chunks, frames, "ttfa") - whole.numpy()).max() <= 1e-5


def test_a_frame_beyond_the_reach_changes_nothing_and_one_within_does() -> None:
    frames, reach = mel(4 * VOCODER.reach + 1), VOCODER.reach
    whole = VOCODER.speak(frames).view(-1, RATE)
    changed = frames.clone()
    changed[2 * reach] += 1

    moved = (VOCODER.speak(changed).view(-1, RATE) - whole).abs().amax(1) > 0

    assert not moved[: reach - 1].any()
    assert not moved[3 * reach + 1 :].any()
    assert moved[reach + 1 : 3 * reach].all()


def test_units_of_several_utterances_in_one_call_are_independent() -> None:
    chunks = policy(VOCODER)
    stage = Vocoder(VOCODER, chunks, number=0)
    stage.make_graphs()
    utterances = [mel(count, count) for count in (5, 23, 40)]
    units = [begins_of(chunks, frames, "balanced")[at][0] for frames, at in zip(utterances, (0, 2, 7), strict=True)]
    stage.begin([unit._replace(slot=slot) for slot, unit in enumerate(units)])

    result = stage.step([0, 1, 2], 5)()

    for frames, at, wave in zip(utterances, (0, 10, 35), result.values, strict=True):
        whole = VOCODER.speak(frames).numpy()[at * RATE :][: 5 * RATE]
        assert np.abs(wave[: len(whole)] - whole).max() <= 1e-5


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"upsample_rates": [4]}, "must have the same length"),
        ({"upsample_rates": [4, 0]}, r"upsample_rates=\[4, 0\] must be a list of 1 to 16 integers"),
        ({"upsample_kernel_sizes": [7, 4]}, "exceed it by an even number"),
        ({"resblock_kernel_sizes": [3, 4]}, "must be odd"),
        ({"leaky_relu_slope": "steep"}, "leaky_relu_slope='steep'"),
        ({"resblock_dilation_sizes": 3}, "resblock_dilation_sizes=3"),
        ({"normalize_before": 1}, "normalize_before=1 must be true or false"),
        ({"upsample_initial_channel": 6}, "multiple of 4"),
    ],
)
def test_an_invalid_config_is_refused_by_name(values: dict[str, object], told: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=told):
        HifiGanConfig.from_json(SIZES | values)
