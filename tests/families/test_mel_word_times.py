"""SpeechT5 reports when words are spoken, from a head of its decoder's attention to the text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from s1_mini import CheckpointMismatchError, EngineConfig, ProductionTTSEngine
from s1_mini.families.mel.config import MelConfig
from s1_mini.families.mel.loaded import open_mel
from s1_mini.families.mel.random import TINY_MODEL
from s1_mini.families.mel.settings import MelSettings
from s1_mini.types import Word
from tests.families.mel_room import CPU, follow_text, written

HEAD = {"layer": 1, "head": 1, "shift_ms": 0}
TEXTS = ["Hello there, this is a small test of it.", "Again.", "Row, row, row your boat.", "It costs $3, Dr. Smith."]
STEP_S = 0.032


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A checkpoint whose head follows the text, and its steps for each token."""
    directory = written(tmp_path_factory.mktemp("mel") / "checkpoint", seed=5)
    return directory, follow_text(directory, layer=1, head=1, alignment=HEAD)


def opened(checkpoint: tuple[Path, float], **settings: object) -> ProductionTTSEngine:
    directory, rate = checkpoint
    config = EngineConfig(checkpoint_path=directory, device="cpu", min_length_ratio=2 * rate, **settings)  # type: ignore[arg-type]
    return ProductionTTSEngine(config)


@pytest.fixture(scope="module")
def engine(checkpoint: tuple[Path, float]) -> Iterator[ProductionTTSEngine]:
    with opened(checkpoint) as engine:
        yield engine


def streamed(engine: ProductionTTSEngine, text: str, profile: str) -> list[Word]:
    chunks = engine.stream(text, word_times=True, seed=1, chunk_profile=profile)
    return [word for chunk in chunks for word in chunk.words]


def test_words_begin_when_the_head_reaches_their_first_letters(
    checkpoint: tuple[Path, float], engine: ProductionTTSEngine
) -> None:
    words = engine.generate(TEXTS[0], word_times=True, seed=1).words

    assert [word.text for word in words] == ["Hello", "there", "this", "is", "a", "small", "test", "of", "it"]
    for before, word in pairwise(words):
        # half a token before the letter, which has the space at the start of the text before it
        assert word.start_s == pytest.approx((word.start + 0.5) * checkpoint[1] * STEP_S, abs=STEP_S)
        assert before.start_s < word.start_s


@pytest.mark.parametrize("text", TEXTS[2:])
def test_streams_have_the_words_of_the_whole_whatever_their_chunks_are(engine: ProductionTTSEngine, text: str) -> None:
    small, large = (streamed(engine, text, profile) for profile in ("ttfa", "throughput"))
    whole = engine.generate(text, word_times=True, seed=1)

    assert small == large
    assert [word.text for word in small] == [word.text for word in whole.words]
    # whole utterances use later frames too, and the sound of the first and last word
    inner = [abs(live.start_s - word.start_s) for live, word in zip(small[1:], whole.words[1:], strict=True)]
    assert all(difference <= STEP_S for difference in inner)


def test_words_in_a_batch_have_the_times_of_words_alone(engine: ProductionTTSEngine) -> None:
    alone = [engine.generate(text, seed=1, word_times=True).words for text in TEXTS]

    together = engine.generate_batch(TEXTS, seed=1, word_times=True).results

    assert [result.words for result in together] == alone


def test_word_times_do_not_change_the_audio(engine: ProductionTTSEngine) -> None:
    plain, timed = (engine.generate(TEXTS[0], seed=2, word_times=wanted) for wanted in (False, True))

    assert (plain.audio == timed.audio).all()
    assert plain.words == ()


def test_tokens_end_where_their_characters_end_in_the_text(checkpoint: tuple[Path, float]) -> None:
    tokenizer = open_mel(checkpoint[0], CPU, MelSettings()).tokenizer
    text = "Né  à Köln."

    ends = tokenizer.token_ends(text)

    assert len(ends) == len(tokenizer.encode(text))
    # a space before the text, and an end token after it; the two spaces are one token
    assert ends.tolist() == [0, 1, 3, 5, 7, 8, 9, 11, 12, 13, 14, 14]


def test_a_head_that_the_decoder_does_not_have_is_refused() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"alignment.layer=2 must be an integer from 0 to 1"):
        MelConfig.from_json(TINY_MODEL | {"alignment": {"layer": 2, "head": 0, "shift_ms": 0}})
