"""Pronunciation lexicons: whole words are respelt, from lines and from W3C PLS files."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from s1_mini.exceptions import ConfigurationError
from s1_mini.text import lexicon
from s1_mini.text.lexicon import Lexicon, Lexicons, read_lexicon

PLS = """<?xml version="1.0" encoding="UTF-8"?>
<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en-US">
  <lexeme><grapheme>W3C</grapheme><grapheme>w3</grapheme><alias>World Wide  Web
  Consortium</alias></lexeme>
  <lexeme><grapheme>pecan</grapheme><phoneme>pɪˈkɑːn</phoneme></lexeme>
</lexicon>"""


def respelt(text: str, **entries: str) -> str:
    parts, end = [], 0
    for match in Lexicon({word.replace("_", " "): said for word, said in entries.items()}).find(text):
        parts += text[end : match.start], match.respelling
        end = match.stop
    return "".join(parts) + text[end:]


@pytest.mark.parametrize(
    ("text", "entries", "expected"),
    [
        ("nginx runs", {"nginx": "engine x"}, "engine x runs"),
        ("NGINX, Nginx's", {"nginx": "engine x"}, "engine x, engine x's"),
        ("it is IT", {"IT": "eye tee"}, "it is eye tee"),
        ("cats scatter the cat", {"cat": "dog"}, "cats scatter the dog"),
        ("a New York minute in new yorkers", {"New_York": "NY"}, "a NY minute in new yorkers"),
        ("New York, New", {"New": "old", "New_York": "NY"}, "NY, old"),
        ("C++ and C", {"C++": "see plus plus"}, "see plus plus and C"),
        ("one two", {"one": "two", "two": "three"}, "two three"),
    ],
)
def test_whole_words_are_respelt_once(text: str, entries: dict[str, str], expected: str) -> None:
    assert respelt(text, **entries) == expected


def test_a_pls_file_has_aliases_and_its_phonemes_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "words.pls").write_text(PLS)

    with caplog.at_level(logging.WARNING):
        entries = read_lexicon(tmp_path / "words.pls")

    assert entries == dict.fromkeys(("W3C", "w3"), "World Wide Web Consortium")
    assert "left out 1 lexemes" in caplog.text


def test_lines_are_words_and_respellings(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("# names\n\nnginx = engine x\nSQL=sequel\n")

    assert read_lexicon(tmp_path / "words.txt") == {"nginx": "engine x", "SQL": "sequel"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nginx = engine x\nSQL", "line 2, column 1: 'SQL' is not of the form `word = respelling`"),
        (b"<lexicon><lexeme></lexicon>", "line 1, column 20: not well-formed XML: mismatched tag"),
        (b"<!DOCTYPE lexicon SYSTEM 'x'><lexicon/>", "document types"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_broken_file_is_a_configuration_error(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(content)

    with pytest.raises(ConfigurationError, match="words") as caught:
        read_lexicon(tmp_path / "words")

    assert reason in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_only_a_regular_file_of_limited_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MAX_FILE_BYTES", 10)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("word = 12345")

    for place in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigurationError, match="a folder, a device or a pipe, not a regular file"):
            read_lexicon(place)
    with pytest.raises(ConfigurationError, match="it is larger than 10 bytes"):
        read_lexicon(tmp_path / "large")


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_lexicon(tmp_path / "none")


def test_words_that_a_text_has_in_another_case_only_are_not_compared() -> None:
    class Counted(str):
        num_parts = 0

        def __getitem__(self, place: Any) -> str:
            Counted.num_parts += 1
            return super().__getitem__(place)

    entries = {f"A{' a' * number}": "x" for number in range(1, 100)}

    assert not list(Lexicon(entries).find(Counted("a " * 1000)))
    assert Counted.num_parts <= 3 * 1000


def test_a_merged_lexicon_finds_the_same_as_one_with_all_entries() -> None:
    text = "new york, New York City and NGINX with nginx or new things"
    server = {"new york": "big apple", "NGINX": "capital", "new": "old", "city": "town"}
    request = {"nginx": "engine x", "New York City": "the city", "new": "fresh"}

    merged = Lexicon(server).merged(request)

    assert list(merged.find(text)) == list(Lexicon(server | request).find(text))
    assert list(Lexicon(server).merged({}).find(text)) == list(Lexicon(server).find(text))


def test_a_voice_has_the_entries_of_its_file_before_those_of_all_voices(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("SQL = sequel\nnginx = engine x\n")
    (tmp_path / "clara.lexicon").write_text("SQL = ess queue ell\n")

    lexicons = Lexicons(tmp_path / "all.txt", [tmp_path], default_voice="clara")

    def respellings(voice: str | None) -> list[str]:
        return [match.respelling for match in lexicons.of(voice).find("SQL nginx")]

    assert respellings("clara") == respellings(None) == ["ess queue ell", "engine x"]
    assert respellings("paul") == respellings("") == ["sequel", "engine x"]
