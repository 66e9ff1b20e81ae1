"""A checkpoint that declares an alphabet gets only its characters; any other gets the text unchanged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from string import ascii_letters

import pytest

from s1_mini.exceptions import CheckpointMismatchError, NothingToSpeakError, TextError
from s1_mini.text.detection import LANGUAGES, MAX_CHARACTERS, detect
from s1_mini.text.form import NormalizedText, TextForm
from s1_mini.text.reading import spoken
from s1_mini.types import Normalize
from s1_mini.weights.directory import DEFAULT_MODEL

SENTENCES = Path(__file__).parents[1] / "assets" / "languages.tsv"
ROWS = [tuple(line.split("\t")) for line in SENTENCES.read_text(encoding="utf-8").splitlines()[1:]]
WORDS = TextForm("en", frozenset(ascii_letters + " '(),-.:;?!"))


def test_a_checkpoint_without_declarations_gets_the_text_as_sent() -> None:
    assert TextForm().script("Take 2  жуки 😀!", 100).text == "Take 2 жуки 😀!"


def test_a_checkpoint_of_words_gets_words_unless_normalize_is_off() -> None:
    assert WORDS.script("# Hi\n\nTake 2 **now**.", 100).text == "Hi.\n\nTake two now."
    with pytest.raises(
        TextError, match=r"cannot pronounce '2' \(character 6\)\. .* normalize to \"auto\", which reads numbers"
    ):
        WORDS.script("Take 2 now.", 100, choice="off")


def test_letters_with_accents_and_other_marks_become_the_nearest_of_the_alphabet() -> None:
    assert WORDS.script("Zoë, “Straße” A–Z naïve 「x」.", 100).text == "Zoe, Strasse A-Z naive x."


@pytest.mark.parametrize(("text", "read"), [("Hi", "Hi."), ("42", "forty-two."), ("Why?", "Why?"), ("(so)", "(so)")])
def test_words_that_end_without_a_mark_end_as_a_sentence(text: str, read: str) -> None:
    assert WORDS.script(text, 100).text == read
    assert WORDS.script("Hi", 100, continues=True).text == "Hi,"
    assert WORDS.script("Hi", 100, choice="off").text == TextForm("en").script("Hi", 100).text == "Hi"


def test_a_piece_without_a_mark_gets_a_comma_or_a_full_stop_unless_normalize_is_off() -> None:
    assert WORDS.prompt("which he said", "auto", continues=True) == "which he said,"
    assert WORDS.prompt("Chapter One", "auto", continues=False) == "Chapter One."
    assert WORDS.prompt("It is so.", "auto", continues=True) == "It is so."
    for form, choice in ((WORDS, "off"), (TextForm("en"), "auto")):
        assert form.prompt("which he said", choice, continues=True) == "which he said"


@pytest.mark.parametrize(
    ("piece", "prompt"),
    [
        ("The answer is no.", "The answer is know."),
        ("No, no! He said no", "Know, know! He said know,"),
        ('"NO" (no)?', '"KNOW" (know)?'),
        ("There is no time, nobody knows, no-one.", "There is no time, nobody knows, no-one."),
    ],
)
def test_a_word_that_the_voice_misreads_before_a_mark_is_respelled_there(piece: str, prompt: str) -> None:
    declared = {"language": "en", "alphabet": ascii_letters + " '(),-.:;?!\"", "misread": {"no": "know"}}

    assert TextForm.from_config({"text": declared}).prompt(piece, "auto", continues=True) == prompt


@pytest.mark.parametrize(
    "declared",
    [
        {"piece_bytes": 49},
        {"piece_bytes": 201},
        {"piece_bytes": True},
        {"misread": ["no"]},
        {"misread": {"No": "know"}},
    ],
)
def test_a_checkpoint_with_a_wrong_size_of_pieces_or_wrong_spellings_is_refused(declared: dict[str, object]) -> None:
    with pytest.raises(CheckpointMismatchError, match=rf"config\.json: text\.{next(iter(declared))}=.* must be"):
        TextForm.from_config({"text": declared})


def test_an_error_says_which_language_the_voice_speaks_and_which_character_it_cannot_pronounce() -> None:
    with pytest.raises(TextError) as raised:
        WORDS.script("He has 3 of\tда 字.", 100)

    assert str(raised.value) == (
        "text: this voice speaks English; it cannot pronounce 'д' (character 13). "
        'Remove it, or set on_unsupported to "skip".'
    )


def test_with_skip_the_rest_is_spoken_with_a_warning() -> None:
    script = WORDS.script("He said 2 да.", 100, on_unsupported="skip")

    assert script.text == "He said two."
    assert script.warning == "Skipped characters that this voice cannot pronounce: 'д', 'а'."


def test_with_skip_brackets_and_quotation_marks_do_not_stay_empty() -> None:
    form = TextForm("en", WORDS.alphabet | {'"'})

    said = form.script('Kyiv (Київ) is "Київ", not "Kiew" "or" (so).', 100, on_unsupported="skip").text

    assert said == 'Kyiv is, not "Kiew" "or" (so).'


def test_with_skip_a_text_of_only_unsupported_characters_is_an_error() -> None:
    with pytest.raises(
        NothingToSpeakError, match="this voice speaks English; it cannot pronounce any character of 'да, да!'"
    ) as raised:
        WORDS.script("да, да!", 100, on_unsupported="skip")

    assert raised.value.warning == "Skipped characters that this voice cannot pronounce: 'д', 'а'."


@pytest.mark.parametrize("choice", ["auto", "off"])
@pytest.mark.parametrize(
    "ornaments",
    ["▶ ", "■", "► ", "● ", "★ ", "│ ", "├── ", "─────", "████░░ ", "⠋ ", "♪ ", "🔹 ", "➤ ", "❖", "⬆ ", "\ue0b0"],
)
def test_ornaments_are_dropped_without_an_error_or_a_warning(ornaments: str, choice: Normalize) -> None:
    for text in (f"{ornaments}Hello there.", f"Hello there {ornaments}."):
        script = WORDS.script(text, 100, choice=choice)

        assert script == NormalizedText("Hello there.")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("■ Milk\n■ Eggs", "Milk, Eggs."),
        ("Home ➜ Office", "Home to Office."),
        ("Settings ▸ Sound", "Settings, Sound."),
        ("│ Name │ Age │", "Name, Age."),
        ("A 4★ hotel", "A four star hotel."),
        ("C♯ and B♭", "C sharp and B flat."),
        ("① First", "one First."),
        ("5㎏ of 𝗯𝗼𝗹𝗱 flour", "five kilograms of bold flour."),
    ],
)
def test_symbols_that_look_like_ornaments_keep_their_meaning(text: str, read: str) -> None:
    assert WORDS.script(text, 100).text == read


def test_a_text_in_another_language_gets_a_warning_that_names_it() -> None:
    text = "Je ne sais pas où est la gare."

    assert WORDS.script(text, 100).warning == (
        "This voice speaks English; the text looks like French and is read as English."
    )
    assert TextForm().script(text, 100).warning is None


@pytest.mark.parametrize("text", ["~~~", "---\n***", "<b></b>"])
def test_markup_alone_is_an_empty_text(text: str) -> None:
    with pytest.raises(TextError, match="contains nothing to speak"):
        WORDS.script(text, 100)


def test_the_length_limit_applies_to_the_normalized_text() -> None:
    with pytest.raises(TextError, match=r"has 159 characters after normalization \(40 as sent\); the limit is 100"):
        WORDS.script("1" * 40, 100)


EMOJI = "".join(map(chr, range(0x1F300, 0x1F5BC))) * 28


@pytest.mark.parametrize("text", ["√2" * 10_000, EMOJI, "$a\\ne b$ " * 2200], ids=["roots", "emoji", "formulas"])
def test_reading_ends_once_the_spoken_form_is_too_long(text: str) -> None:
    parts: list[None] = []

    with pytest.raises(TextError, match=rf"has more than 20000 characters after normalization \({len(text)} as sent\)"):
        WORDS.script(text, 20_000, check=lambda: parts.append(None))

    assert len(parts) < 5


def test_reading_of_a_long_text_can_be_ended_between_its_parts() -> None:
    class LeftError(Exception):
        pass

    def check() -> None:
        raise LeftError

    with pytest.raises(LeftError):
        WORDS.script("He came at 5. " * 200, 20_000, check=check)


def test_a_long_text_is_read_like_its_sentences() -> None:
    sentences = [f"Dr. Smith paid ${number}.50 on May {number}, 2024." for number in range(1, 31)] * 4

    assert spoken(" ".join(sentences)) == " ".join(map(spoken, sentences))


@pytest.mark.parametrize("text", [5, {"language": "tlh"}, {"alphabet": ""}, {"alphabet": ["a"]}])
def test_an_invalid_declaration_is_refused(text: object) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"config\.json: text"):
        TextForm.from_config({"text": text})


def test_the_built_in_voice_reads_english_words() -> None:
    form = TextForm.from_config(json.loads((DEFAULT_MODEL / "config.json").read_text(encoding="utf-8")))

    assert (
        form.script("It was 1984, at 5% & 😀.", 100).text
        == "It was nineteen eighty-four, at five percent and grinning face."
    )
    assert form.alphabet is not None
    assert not form.alphabet & set("0123456789%&é")


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
