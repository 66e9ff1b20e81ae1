import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.voice import texts
from recipes.voice.texts import debian
from recipes.voice.texts.stream import BLOCK, MAX_CHARACTERS, WEIGHTS, bare


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

    unwanted = {bare(text) for kind in held_out.values() for text in kind}
    assert not unwanted & {bare(text) for text in spoken}


def test_held_out_sentences_are_as_many_and_as_long_as_promised():
    held_out = texts.held_out_sentences()

    sizes = {"plain": 100, "numbers": 20, "names": 20, "short": 20, "long": 5, "reference": 40}
    assert {kind: len(lines) for kind, lines in held_out.items()} == sizes
    assert len({text for lines in held_out.values() for text in lines}) == sum(sizes.values())
    assert all(4 <= len(text.split()) <= 14 for text in held_out["plain"])
    assert all(len(text.split()) <= 2 for text in held_out["short"])
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


def test_every_natural_sentence_is_used_before_one_is_repeated():
    corpora = texts.Corpora([f"Sentence {i} of many." for i in range(130)], ["word", "other"], ["stone", "tree"])
    num_natural = 130 * BLOCK // WEIGHTS["natural"]

    said = [text for text in itertools.islice(texts.utterances(5, corpora), num_natural) if text in corpora.sentences]

    assert sorted(said) == sorted(corpora.sentences)


def test_prepared_corpora_can_be_read_again(tmp_path, monkeypatch):
    for source in ("_examples", "_glosses", "_verses", "_fortunes", "_words"):
        monkeypatch.setattr(debian, source, lambda: iter(["the cat ran away", "two", "a 3rd <b>", "the cat ran away "]))

    debian.prepare(tmp_path / "texts.xz")

    corpora = texts.load(tmp_path / "texts.xz")
    assert corpora.sentences == ["The cat ran away."]
    assert corpora.words == ["two"]


def test_the_command_prints_the_beginning_of_the_stream(many):
    command = [sys.executable, "-X", "utf8", "-m", "recipes.voice.texts", "show", "--seed", "3", "--count", "5"]
    root = Path(__file__).parents[2]
    shown = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True, encoding="utf-8").stdout

    assert shown.splitlines() == many[:5]
