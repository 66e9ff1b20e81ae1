"""Text that is clearly in another language is detected; English with names, quotations and foreign words is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from s1_mini.text.form import LANGUAGES, MAX_CHARACTERS, detect

SENTENCES = Path(__file__).parents[1] / "assets" / "languages.tsv"
ROWS = [tuple(line.split("\t")) for line in SENTENCES.read_text(encoding="utf-8").splitlines()[1:]]


def test_no_english_sentence_is_taken_for_another_language() -> None:
    english = [sentence for language, sentence in ROWS if language == "en"]

    assert len(english) >= 100
    assert {sentence: found for sentence in english if (found := detect(sentence)) is not None} == {}


def test_nine_of_ten_foreign_sentences_are_detected_and_none_of_french_and_german_is_taken_for_another() -> None:
    foreign = [(language, sentence) for language, sentence in ROWS if language != "en"]
    found = [(language, detect(sentence)) for language, sentence in foreign]

    assert len(foreign) >= 60
    assert sum(tag is not None for _, tag in found) >= 0.9 * len(foreign)
    assert Counter(tag for language, tag in found if language in ("fr", "de") and tag not in (language, None)) == {}


def test_every_language_that_is_detected_has_a_name() -> None:
    assert {language for language, _ in ROWS} == set(LANGUAGES)


def test_only_the_beginning_of_a_text_counts() -> None:
    assert detect("Je ne sais pas où est la gare. " + "The train is late today. " * MAX_CHARACTERS) is None
    assert detect("The train is late. " * (MAX_CHARACTERS // 19 + 1) + "Je ne sais pas. " * MAX_CHARACTERS) is None
