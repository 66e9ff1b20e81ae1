"""Sound of many rows in batches of fixed sizes is the sound of each alone; on a CPU the graphs run step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from s1_mini.exceptions import GenerationError
from s1_mini.runtime.generator import Generator
from s1_mini.runtime.job import CHUNK_FRAMES
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.model_runner import ModelRunner
from s1_mini.runtime.outbox import Outbox
from s1_mini.runtime.sound_graphs import MAX_FRAMES, SoundGraphs
from s1_mini.types import SamplingParams
from tests.runtime.conftest import start_equipped

SIZES = sorted({size for profile in CHUNK_FRAMES.values() for size in profile})
RATE = 2048
SETTINGS = {"max_batch_size": 6, "max_columns": 512, "max_queue_size": 1000}


def graphs_of(speaker: Speaker, rows: int) -> SoundGraphs:
    decoder = speaker.loaded.open_decoder(rows + 1)
    return SoundGraphs(speaker.codec, decoder.push_where, rows=rows, sizes=SIZES, device=torch.device("cpu"))


def equip(runner: ModelRunner, speaker: Speaker) -> None:
    runner.sounds_beside = runner.decodes_together = True
    runner._sound_graphs = graphs_of(speaker, runner.num_rows)


def ask(generator: Generator, seed: int, frames: int, **options: Any) -> Outbox:
    sampling = SamplingParams(seed=seed, max_new_tokens=frames)
    pieces = options.pop("pieces", ["Hello."])
    return generator.speak(pieces, (), sampling, deadline=float("inf"), **options)


def sound(outbox: Outbox) -> np.ndarray:
    return np.concatenate([chunk.audio for chunk in outbox])


@pytest.mark.parametrize("profile", sorted(CHUNK_FRAMES))
def test_requests_of_any_length_sound_as_they_do_one_by_one(both: tuple[Generator, Generator], profile: str) -> None:
    asked = [(seed, 9 + 7 * seed) for seed in range(8)]

    together, alone = (
        [ask(generator, *each, profile=profile, pieces=["One.", "Two."]) for each in asked] for generator in both
    )

    for ours, theirs in zip(map(sound, together), map(sound, alone), strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-5
    assert list(both[0].worker.audit()) == []


def test_a_graph_decodes_no_more_frames_than_it_may(speaker: Speaker) -> None:
    graphs = graphs_of(speaker, 64)

    assert {size: graphs.most_rows(size) for size in SIZES} == {1: 64, 2: 64, 4: 64, 8: 32, 12: 32, 16: 16, 25: 16}
    assert all(size * graphs.most_rows(size) <= MAX_FRAMES for size in SIZES)


def test_sound_that_is_not_finite_is_its_own_rows_error(speaker: Speaker) -> None:
    """And only there: the rows beside it are told to be well."""
    with torch.inference_mode():
        decoder = speaker.loaded.open_decoder(4)
        graphs = SoundGraphs(speaker.codec, decoder.push_where, rows=3, sizes=[2], device=torch.device("cpu"))
        codes = [np.zeros((2, 10), np.int64)] * 2
        graphs.decode(codes, [0, 1], [True, True])
        decoder._last.past[1] = torch.nan

        samples, finite = graphs.decode(codes, [0, 1], [False, False])

    assert finite.tolist() == [True, False]
    assert np.isfinite(samples[0]).all()


def test_a_request_whose_sound_is_not_finite_fails_alone(speaker: Speaker) -> None:
    generator = start_equipped(speaker, SETTINGS, equip)
    expected = sound(ask(generator, 1, 16, profile="ttfa"))
    runner = generator.worker.runner
    graphs, plain = runner._sound_graphs, runner._sound_graphs.decode  # type: ignore[union-attr]
    assert graphs is not None

    def spoil(codes: Any, rows: Any, fresh: Any) -> tuple[np.ndarray, np.ndarray]:
        samples, finite = plain(codes, rows, fresh)
        return samples, finite & (np.array([len(each) for each in codes]) != 16)

    graphs.decode = spoil  # type: ignore[method-assign,assignment]
    bad, good = ask(generator, 1, 16, profile="throughput"), ask(generator, 1, 16, profile="ttfa")

    assert len(expected) == 16 * RATE
    assert np.abs(sound(good) - expected).max() < 1e-5
    with pytest.raises(GenerationError, match="not finite"):
        sound(bad)
    generator.close()
    assert list(generator.worker.audit()) == []
