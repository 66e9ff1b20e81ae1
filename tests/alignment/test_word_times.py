"""Engines report when words are spoken: streamed, whole, at any speed, and not where a checkpoint cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from s1_mini import CheckpointMismatchError, EngineConfig, ProductionTTSEngine
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.random import Recipe, write_random_checkpoint
from s1_mini.types import Word
from tests.conftest import NOISE

HEAD = {"layer": 1, "head": 2, "shift_ms": 20}
TEXT = "First we go (in 2021).  Then, 2 kg of flour! And Dr. Smith waits; he's late."


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProductionTTSEngine]:
    """An engine with random weights whose config names a head, which follows nothing."""
    directory = tmp_path_factory.mktemp("aligned") / "tiny"
    text = {"language": "en", "alphabet": None}
    model = NOISE.model | {"alignment": HEAD, "text": text}
    write_random_checkpoint(directory, Recipe(model, NOISE.codec, num_semantic=NOISE.num_semantic))
    with ProductionTTSEngine(EngineConfig(checkpoint_path=directory, device="cpu", chunk_length=50)) as engine:
        yield engine


def streamed(engine: ProductionTTSEngine, text: str, **options: object) -> list[Word]:
    return [word for chunk in engine.stream(text, word_times=True, seed=1, **options) for word in chunk.words]


def check(words: list[Word] | tuple[Word, ...], text: str, seconds: float) -> None:
    """Check that words are those of the text, in order and within the audio."""
    assert all(text[word.start : word.stop] == word.text for word in words)
    places = [place for word in words for place in (word.start, word.stop)]
    assert places == sorted(places)
    edges = [edge for word in words for edge in (word.start_s, word.end_s)]
    assert edges == sorted(edges)
    assert edges[0] >= 0
    assert edges[-1] <= seconds + 1e-3


def test_every_written_word_is_spoken_in_order_and_within_the_audio(speaker: ProductionTTSEngine) -> None:
    response = speaker.generate(TEXT, word_times=True, seed=1, max_new_tokens=120)

    check(response.words, TEXT, response.audio_seconds)
    if response.finish_reason == "stop":
        assert "".join(word.text for word in response.words).startswith("Firstwegoin2021Then2 kg")


def test_streams_have_the_same_words_whatever_their_chunks_are(speaker: ProductionTTSEngine) -> None:
    small = streamed(speaker, TEXT, chunk_profile="ttfa", max_new_tokens=60)
    large = streamed(speaker, TEXT, chunk_profile="throughput", max_new_tokens=60)

    assert small == large
    check(small, TEXT, speaker.generate(TEXT, seed=1, max_new_tokens=60).audio_seconds)


def test_word_times_do_not_change_the_audio(speaker: ProductionTTSEngine) -> None:
    plain = speaker.generate(TEXT, seed=2, max_new_tokens=30)
    timed = speaker.generate(TEXT, seed=2, max_new_tokens=30, word_times=True)

    np.testing.assert_array_equal(plain.audio, timed.audio)
    assert plain.words == ()


def test_speed_changes_the_times(speaker: ProductionTTSEngine) -> None:
    plain = streamed(speaker, TEXT, max_new_tokens=40)
    fast = streamed(speaker, TEXT, max_new_tokens=40, speed=2.0)

    assert [word.text for word in fast] == [word.text for word in plain]
    assert [word.start_s for word in fast] == pytest.approx([word.start_s / 2 for word in plain], abs=1e-3)


def test_words_without_normalization_are_those_of_the_text(speaker: ProductionTTSEngine) -> None:
    words = speaker.generate("R2 D2 and 3 kg", word_times=True, seed=1, normalize="off", max_new_tokens=60).words

    assert [word.text for word in words] == ["R2", "D2", "and", "3", "kg"][: len(words)]


async def read(engine: ProductionTTSEngine) -> list[Word]:
    stream = engine.stream_async("One two three.", word_times=True, seed=1, max_new_tokens=40)
    return [word async for chunk in stream for word in chunk.words]


def test_words_are_the_same_in_an_event_loop(speaker: ProductionTTSEngine) -> None:
    assert asyncio.run(read(speaker)) == streamed(speaker, "One two three.", max_new_tokens=40)


@pytest.mark.parametrize(
    ("alignment", "message"),
    [
        ([3, 2], "must be an object"),
        ({"layer": 3, "head": 0, "shift_ms": 0}, "alignment.layer=3 must be an integer from 0 to 2"),
        ({"layer": 0, "head": 4, "shift_ms": 0}, "alignment.head=4 must be an integer from 0 to 3"),
        ({"layer": 0, "head": 0}, "alignment.shift_ms=None must be"),
        ({"layer": 0, "head": 0, "shift_ms": 5000}, "alignment.shift_ms=5000 must be"),
    ],
)
def test_an_invalid_alignment_head_is_refused(alignment: object, message: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=message):
        S1Config.from_json(NOISE.model | {"alignment": alignment})


def test_pauses_after_words_have_the_shift_of_words_by_default() -> None:
    head = S1Config.from_json(NOISE.model | {"alignment": HEAD}).alignment

    assert head is not None
    assert (head.shift_ms, head.pause_shift_ms, head.end_shift_ms) == (20, 20, 20)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_marks_of_ssml_have_the_time_of_the_next_word_or_of_their_place_in_a_pause(
    speaker: ProductionTTSEngine, is_streamed: bool
) -> None:
    ssml = (
        '<speak><mark name="begin"/><break time="1s"/>One <mark name="two"/>two.<mark name="after"/><break time="2s"/>'
        'Three.<break time="1s"/><mark name="inner"/><break time="500ms"/><mark name="end"/></speak>'
    )
    options: dict[str, object] = {"text_type": "ssml", "word_times": True, "seed": 1, "max_new_tokens": 40}
    if is_streamed:
        chunks = list(speaker.stream(ssml, **options))  # type: ignore[arg-type]
        words = [word for chunk in chunks for word in chunk.words]
        marks = [mark for chunk in chunks for mark in chunk.marks]
        seconds = sum(len(chunk.audio) for chunk in chunks) / chunks[0].sample_rate
    else:
        response = speaker.generate(ssml, **options)  # type: ignore[arg-type]
        words, marks, seconds = list(response.words), list(response.marks), response.audio_seconds

    assert [mark.name for mark in marks] == ["begin", "two", "after", "inner", "end"]
    assert [ssml[mark.start : mark.stop] for mark in marks] == [f'<mark name="{mark.name}"/>' for mark in marks]
    ends = {word.text: word for word in words}
    expected = [0.0, ends["two"].start_s, ends["two"].end_s, seconds - 0.5, seconds]
    assert [mark.time_s for mark in marks] == pytest.approx(expected, abs=2e-3)


def test_marks_are_reported_with_the_times_of_words_only(speaker: ProductionTTSEngine) -> None:
    ssml = '<speak>One <mark name="two"/>two.<break/><mark name="end"/></speak>'

    assert speaker.generate(ssml, text_type="ssml", seed=1, max_new_tokens=5).marks == ()
