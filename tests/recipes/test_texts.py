import itertools
import re

import pytest

from recipes.voice import texts
from recipes.voice.texts.stream import MAX_CHARACTERS, bare


@pytest.fixture(scope="module")
def many() -> list[str]:
    return list(itertools.islice(texts.utterances(3), 4000))


def test_the_same_seed_gives_the_same_texts(many):
    assert list(itertools.islice(texts.utterances(3), 50)) == many[:50]
    assert list(itertools.islice(texts.utterances(4), 50)) != many[:50]


def test_a_stream_can_be_entered_anywhere(many):
    assert list(itertools.islice(texts.utterances(3, start=1234), 30)) == many[1234:1264]


def test_held_out_sentences_are_never_yielded():
    held_out = texts.held_out_sentences()
    corpora = texts.Corpora(
        sentences=[*held_out["plain"], "Something else."], common=["yes", "no", "stone"], words=["yes", "tree"]
    )

    spoken = itertools.islice(texts.utterances(0, corpora), 2000)

    unwanted = {bare(text) for kind, lines in held_out.items() if kind != "short" for text in lines}
    assert not unwanted & {bare(text) for text in spoken}


def test_further_training_has_more_short_texts_and_sentences_without_commas():
    further = list(itertools.islice(texts.utterances(0, mix="further"), 2000))

    assert sum(len(text.split()) <= 3 for text in further) > 0.2 * len(further)
    assert sum(len(text) > 120 and "," not in text for text in further) > 0.03 * len(further)
    assert any(text.endswith(" no.") for text in further)


def test_held_out_sentences_are_as_many_and_as_long_as_promised():
    held_out = texts.held_out_sentences()

    sizes = {"plain": 100, "numbers": 20, "names": 20, "short": 20, "long": 5, "reference": 40, "calls": 40}
    assert {kind: len(lines) for kind, lines in held_out.items()} == sizes
    assert len({text for lines in held_out.values() for text in lines}) == sum(sizes.values())
    assert all(4 <= len(text.split()) <= 14 for text in held_out["plain"])
    assert all(len(text.split()) <= 2 for text in held_out["short"])
    assert all(len(text.split()) <= 3 for text in held_out["calls"])
    assert all(150 <= len(text) <= 220 for text in held_out["long"])


def test_every_kind_of_text_occurs_and_repetitions_are_rare(many):
    assert all(0 < len(text) <= MAX_CHARACTERS for text in many)
    assert len(set(many)) > 0.94 * len(many)
    patterns = [r"\$\d", "£", "€", r"\d:\d\d", r"\d/\d\d/\d{4}", r"\dth\b", "%", r"\bDr\.", r"\?$", "!$", '"']
    for pattern in patterns:
        assert any(re.search(pattern, text) for text in many), pattern
    lengths = sorted(map(len, many))
    assert 25 <= lengths[len(lengths) // 2] <= 90
    assert lengths[-1] > 150
