"""Markup of a text: SSML and marks in brackets become segments; everything else is an error with its place."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import MarkupError
from s1_mini.text.lexicon import Lexicon
from s1_mini.text.markup import MAX_SEGMENTS, RATES, Segment, is_ssml, read_marked, read_ssml
from s1_mini.text.xml_reader import MAX_ATTRIBUTES, MAX_DEPTH


def no_lexicon(_: str | None) -> Lexicon:
    return Lexicon({})


def segments(body: str, language: str | None = "en") -> list[Segment]:
    return list(read_ssml(f"<speak>{body}</speak>", no_lexicon, language).segments)


def words(body: str, language: str | None = "en") -> str:
    return " ".join(" ".join(segment.text for segment in segments(body, language=language)).split())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("Hello.", [("Hello.", {})]),
        ("Cats &amp; dogs", [("Cats & dogs", {})]),
        ("<![CDATA[a < b]]>", [("a < b", {})]),
        ("One.<break/>Two.", [("One.", {}), ("Two.", {"pause_before_s": 0.25, "division": "sentence"})]),
        ('One.<break time="500ms"/>Two.', [("One.", {}), ("Two.", {"pause_before_s": 0.5, "division": "sentence"})]),
        (
            'One.<break time="1.5s"/><break strength="strong"/>Two.',
            [("One.", {}), ("Two.", {"pause_before_s": 2.0, "division": "sentence"})],
        ),
        ('One.<break strength="none"/>Two.', [("One. Two.", {})]),
        ('One.<break time="0s"/>Two.', [("One.", {}), ("Two.", {"pause_before_s": 0.0, "division": "sentence"})]),
        ('<break time="1s"/>One.', [("One.", {"pause_before_s": 1.0})]),
        ('One.<break time="1s"/>', [("One.", {}), ("", {"pause_before_s": 1.0})]),
        ('<break time="1s"/>', [("", {"pause_before_s": 1.0})]),
        ("<p>One.</p> <p>Two.</p>", [("One.", {}), ("Two.", {"division": "paragraph"})]),
        (
            '<p>One.</p><break time="1s"/>Two.',
            [("One.", {}), ("Two.", {"pause_before_s": 1.0, "division": "paragraph"})],
        ),
        ('<prosody rate="fast">One.</prosody>', [("One.", {"speed": 1.25})]),
        ('<prosody rate="80%">One.</prosody>', [("One.", {"speed": 0.8})]),
        ('<prosody rate="+50%" volume="loud">One.</prosody>', [("One.", {"speed": 1.5, "gain_db": 6.0})]),
        (
            'a <prosody rate="2"><prosody rate="50%" volume="-3.5dB">b</prosody> c</prosody> d',
            [
                ("a ", {}),
                ("b", {"gain_db": -3.5}),
                (" c", {"speed": 2.0}),
                (" d", {}),
            ],
        ),
        (
            '<voice name="clara">Hello.</voice> Hi.',
            [("Hello.", {"voice": "clara"}), (" Hi.", {"division": "sentence"})],
        ),
        (
            '<prosody rate="fast">Done</prosody>. <lang xml:lang="fr-FR">Oui</lang>',
            [("Done", {"speed": 1.25}), (" Oui", {"division": "sentence"})],
        ),
    ],
)
def test_ssml_becomes_segments(body: str, expected: list[tuple[str, dict[str, Any]]]) -> None:
    found = [replace(each, starts=(), stops=()) for each in segments(body)]
    assert found == [Segment(text, **style) for text, style in expected]


@pytest.mark.parametrize(
    ("body", "language", "expected"),
    [
        ('<sub alias="for your information">FYI</sub>', "en", "for your information"),
        ('<say-as interpret-as="characters">a1c</say-as>', "en", "A one C"),
        ('<say-as interpret-as="spell-out">hi</say-as>', None, "H I"),
        ('<say-as interpret-as="digits">2025</say-as>', "en", "two zero two five"),
        ('<say-as interpret-as="digits">20</say-as>', "de", "zwei null"),
        ('<say-as interpret-as="digits">20</say-as>', None, "2 0"),
        ('<say-as interpret-as="cardinal">1,984</say-as>', "en", "one thousand nine hundred eighty-four"),
        ('<say-as interpret-as="number">-2.5</say-as>', "en", "minus two point five"),
        ('<say-as interpret-as="ordinal">3</say-as>', "en", "third"),
        ('<say-as interpret-as="ordinal">3</say-as>', None, "3"),
        ('<say-as interpret-as="date" format="mdy">3/4/2025</say-as>', "en", "March 4, 2025"),
        ('<say-as interpret-as="date" format="dmy">3/4/25</say-as>', "en", "April 3, 2025"),
        ('<say-as interpret-as="date" format="dmy">3/4/25</say-as>', "en-IN", "April 3, 2025"),
        ('<say-as interpret-as="date" format="dmy">3/4/25</say-as>', "EN-gb", "April 3, 2025"),
        ('<say-as interpret-as="number">-2.5</say-as>', "en-IN", "minus two point five"),
        ('<say-as interpret-as="telephone">+1</say-as>', "en-IN", "plus one"),
        ('<say-as interpret-as="date" format="yyyymmdd">20250403</say-as>', "en", "April 3, 2025"),
        ('<say-as interpret-as="date" format="mdy">99/4/2025</say-as>', "en", "99/4/2025"),
        ('<say-as interpret-as="telephone">+1 206-55</say-as>', "en", "plus one, two zero six, five five"),
        ('<say-as interpret-as="expletive">darn</say-as>', "en", "darn"),
        ('<phoneme alphabet="ipa" ph="pɪˈkɑːn">pecan</phoneme> pie', "en", "pecan pie"),
        ('<emphasis level="strong">Very</emphasis> good', "en", "Very good"),
        ('<amazon:effect name="whispered">Psst</amazon:effect>', "en", "Psst"),
    ],
)
def test_replaced_text_is_spoken(body: str, language: str | None, expected: str) -> None:
    assert words(body, language) == expected


def test_markup_without_effect_is_named_in_a_warning() -> None:
    markup = read_ssml('<speak><prosody pitch="high">a</prosody><phoneme ph="b">b</phoneme></speak>', no_lexicon)

    assert markup.warning == "Ignored markup that this engine does not support: pitch of <prosody>, <phoneme>."


def test_a_sentence_ends_with_its_ssml_element_s() -> None:
    assert segments("<s>One</s><s>two</s>")[0].text.split("\u2028") == ["", "One", "", "two", ""]


def test_marks_have_their_place_in_the_text() -> None:
    text = 'ab<mark name="x"/>c<mark name="z" ></mark ><break time="1s"/><mark name="y"/><break time="2s"/>d'
    first, second = segments(text)

    assert [mark[:2] for mark in first.marks] == [("x", 2), ("z", 3)]
    assert [(mark.name, mark.position, mark.pause_s) for mark in second.marks] == [("y", 0, 2.0)]
    source = f"<speak>{text}</speak>"
    elements = [source[mark.start : mark.stop] for mark in (*first.marks, *second.marks)]
    assert elements == ['<mark name="x"/>', '<mark name="z" ></mark >', '<mark name="y"/>']


def test_each_character_stands_for_characters_of_the_source() -> None:
    source = '<speak>é &amp; W3C\r\n<sub alias="you">u</sub>!</speak>'
    segment = read_ssml(source, lambda _: Lexicon({"W3C": "web"})).segments[0]

    places = {character: source[start:stop] for character, start, stop in zip(*_columns(segment), strict=True)}
    assert places == {"é": "é", " ": " ", "&": "&amp;", "\n": "\r\n", "!": "!"} | dict.fromkeys("web", "W3C") | dict(
        zip("you", "uuu", strict=True)
    )


def _columns(segment: Segment) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return segment.text, segment.starts, segment.stops


@pytest.mark.parametrize(
    ("source", "place", "reason"),
    [
        ("Hello", "line 1, column 1", "not well-formed XML"),
        ("<speak>Hello", "line 1, column 13", "not well-formed XML"),
        ("<speak>\n <b>Hi</b></speak>", "line 2, column 2", "<b> is not supported; use one of speak, break"),
        ("<p>Hi</p>", "line 1, column 1", "<p> is the outermost element"),
        ("<speak><speak/></speak>", "line 1, column 8", "one <speak> element"),
        ("<speak>é <break time='11s'/></speak>", "line 1, column 10", "the pause is '11s'; use 0s to 10s"),
        ("<speak><break time='soon'/></speak>", "line 1, column 8", "the pause is 'soon'"),
        ("<speak><break strength='long'/></speak>", "line 1, column 8", "must be one of none, x-weak"),
        ("<speak><break>a</break></speak>", "line 1, column 15", "<break> must be empty"),
        ("<speak><sub>a</sub></speak>", "line 1, column 8", '<sub> needs an attribute: alias="…"'),
        ("<speak><sub alias='b'><p>a</p></sub></speak>", "line 1, column 23", "<p> is not allowed in <sub>"),
        ("<speak><say-as>a</say-as></speak>", "line 1, column 8", "interpret-as"),
        ("<speak><voice>a</voice></speak>", "line 1, column 8", "name"),
        ("<speak><prosody rate='quick'>a</prosody></speak>", "line 1, column 8", "must be a percentage"),
        ("<speak><prosody volume='11'>a</prosody></speak>", "line 1, column 8", "+6dB"),
        ("<speak>" + "<break time='10s'/>" * 31 + "</speak>", "line 1, column 578", "add up to more than 300 s"),
        ("<speak>" + "a<break/>" * (MAX_SEGMENTS + 1) + "</speak>", "line 1, column 4508", "more than 500 parts"),
        (
            "<speak>" + '<mark name="a"/>' * (MAX_SEGMENTS + 1) + "</speak>",
            "line 1, column 8008",
            "more than 500 marks",
        ),
        ("<speak>\ud800</speak>", "line 1, column 8", "surrogate"),
        # attacks
        ("<!DOCTYPE s [<!ENTITY a 'ha'><!ENTITY b '&a;&a;'>]><speak>&b;</speak>", "line 1", "document types"),
        ("<!DOCTYPE s [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><speak>&x;</speak>", "line 1", "document types"),
        ("<!DOCTYPE s SYSTEM 'http://127.0.0.1:1/'><speak>a</speak>", "line 1", "document types"),
        ("<speak>&x;</speak>", "line 1, column 8", "undefined entity"),
        ("<speak>" + "<p>" * 100_000, "line 1, column 101", f"more than {MAX_DEPTH} elements deep"),
        (f"<speak a='{'x' * 10**6}'>a</speak>", "line 1, column 1", "an attribute of 1000000 characters"),
        (
            "<speak " + " ".join(f"a{n}=''" for n in range(9999)) + "/>",
            "line 1",
            f"more than {MAX_ATTRIBUTES} attributes",
        ),
    ],
)
def test_bad_ssml_is_refused_with_its_line_and_column(source: str, place: str, reason: str) -> None:
    with pytest.raises(MarkupError) as caught:
        read_ssml(source, no_lexicon)

    assert place in str(caught.value)
    assert reason in str(caught.value)


def test_every_rate_that_the_error_message_names_is_accepted() -> None:
    with pytest.raises(MarkupError) as caught:
        segments('<prosody rate="quick">One.</prosody>')

    numbers, names = str(caught.value).partition("must be")[2].split("one of ")
    speeds = [
        segments(f'<prosody rate="{rate}">One.</prosody>')[0].speed
        for rate in re.findall(r"[+-]?\d[\d.]*%?", numbers) + re.findall(r"[\w-]+", names)
    ]
    assert speeds == [0.8, 0.8, 1.2, 0.8, 1.2, 0.8, *RATES.values()]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("One. [pause 0.5s] Two.", [("One. ", None, None), (" Two.", None, 0.5)]),
        ("One. [pause 500ms][pause 1 s]", [("One. ", None, None), ("", None, 1.5)]),
        ("[clara] Hello. [Bob] Hi.", [(" Hello. ", "clara", None), (" Hi.", "bob", None)]),
        ("[note] Hello [pause] [pause 3 dogs]", [("[note] Hello [pause] [pause 3 dogs]", None, None)]),
        ("See [clara](https://clara.example).", [("See [clara](https://clara.example).", None, None)]),
        ("a < b [pause 1s] &amp; c", [("a < b ", None, None), (" &amp; c", None, 1.0)]),
    ],
)
def test_marks_in_brackets_become_segments(source: str, expected: list[tuple[str, str | None, float]]) -> None:
    markup = read_marked(source, no_lexicon, {"clara", "bob"})

    assert [(each.text, each.voice, each.pause_before_s) for each in markup.segments] == expected


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("[paul] Ready?", "[paul] is not a voice"),
        ("[clara] Yes.\n \t[Paul] No.\n[paul] Yes. [ann] Yes.", "[Paul], [paul] are not voices"),
        ("[a] 1\n[b] 2\n[c] 3\n[d] 4", "[a], [b], [c] … are not voices"),
        ("[clara] Yes. [note] No.", None),
        ("[1] A footnote.\n[link](https://clara.example)\n[two words]", None),
    ],
)
def test_an_unknown_name_that_begins_a_line_causes_a_warning(source: str, named: str | None) -> None:
    warning = read_marked(source, no_lexicon, {"clara"}).warning

    assert (warning is None) == (named is None)
    assert warning is None or warning.startswith(f"{named} and w")


def test_the_page_about_markup_uses_only_built_in_voices() -> None:
    page = (Path(__file__).parents[2] / "docs" / "markup.md").read_text(encoding="utf-8")
    voices = {file.stem for file in resources.files("s1_mini.default_model").joinpath("voices").iterdir()}
    used = set(re.findall(r"\[([a-z]+)\](?!\()", page)) - {"name"}

    assert {"clara"} < used <= voices


def test_a_pause_in_brackets_that_is_too_long_is_refused() -> None:
    with pytest.raises(MarkupError, match="line 2, column 3: the pause is '11s'"):
        read_marked("One.\n, [pause 11s]", no_lexicon, ())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<speak>a</speak>", True),
        (' <?xml version="1.0"?>\n<speak version="1.1">a\nb</speak >\n', True),
        ("<speak>a", False),
        ("<speaker>a</speaker>", False),
        ("Say <speak>a</speak>", False),
    ],
)
def test_ssml_is_recognized_by_its_outermost_element(source: str, expected: bool) -> None:
    assert is_ssml(source) is expected


PIECES = st.sampled_from(
    [
        *("<speak>", "</speak>", "<p>", "</p>", "<s>", "</s>", "<break", " time='", "1s'", "/>", "<sub alias='b'>"),
        *("</sub>", "<say-as interpret-as='", "date' format='mdy'>", "ordinal'>", "digits'>", "</say-as>", "12/11/10"),
        *("<prosody rate='", "50%'>", "volume='+1dB'>", "</prosody>", "&amp;", "&#x85;", "&lt", "<![CDATA[", "]]>"),
        *("<!--", "-->", "<?x?>", "<!DOCTYPE", "\r\n", "é", "𝄞", "a", "W3C", ".", "[pause 1s]", "[clara]", "\ud800"),
    ]
)


@given(st.lists(PIECES, max_size=20).map("".join) | st.text(max_size=50))
def test_the_parser_raises_nothing_but_its_own_error(body: str) -> None:
    lexicon = Lexicon({"w3c": "web", "a": "b"})
    for source in (body, f"<speak>{body}</speak>"):
        for read in (
            lambda text: read_ssml(text, lambda _: lexicon, "en"),
            lambda text: read_marked(text, lambda _: lexicon, {"clara"}),
        ):
            try:
                markup = read(source)
            except MarkupError:
                continue
            for each in markup.segments:
                assert len(each.text) == len(each.starts) == len(each.stops)
                assert all(0 <= a <= b <= len(source) for a, b in zip(each.starts, each.stops, strict=True))
