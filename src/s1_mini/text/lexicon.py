"""Pronunciation lexicons: words and their respellings, from W3C PLS files, text files or a request."""

from __future__ import annotations

import logging
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from s1_mini.exceptions import ConfigurationError, MarkupError
from s1_mini.text.xml_reader import read_xml

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 * 2**20

_TOKEN = re.compile(r"\w+|[^\w\s]")


class Match(NamedTuple):
    """A respelling for characters start … stop of a text."""

    start: int
    stop: int
    respelling: str


class Lexicon:
    """Respellings of whole words. Entries in lower case match any case; all others match only their own spelling."""

    def __init__(self, entries: Mapping[str, str], below: Lexicon | None = None) -> None:
        """`below` has further entries of lower precedence; it is neither copied nor changed."""
        own = {word.strip(): respelling for word, respelling in entries.items() if word.strip()}
        self._entries: ChainMap[str, str] = ChainMap(own, *(below._entries.maps if below else ()))
        # Lengths of the entries by their first token, longest first.
        self._lengths: ChainMap[str, list[int]] = ChainMap({}, *(below._lengths.maps if below else ()))
        for word in own:
            first = _TOKEN.match(word)
            assert first is not None
            token = first.group().lower()
            lengths = self._lengths.get(token, [])
            if len(word) not in lengths:
                self._lengths[token] = sorted((*lengths, len(word)), reverse=True)

    def __bool__(self) -> bool:
        """Return whether it has entries."""
        return bool(self._entries)

    def merged(self, entries: Mapping[str, str]) -> Lexicon:
        """Return a lexicon with more entries, which take precedence."""
        return Lexicon(entries, self) if entries else self

    def find(self, text: str) -> Iterator[Match]:
        """Yield the matches in a text in order; if several begin at one place, the longest."""
        position = 0
        while (token := _TOKEN.search(text, position)) is not None:
            position = token.end()
            for length in self._lengths.get(token.group().lower(), ()):
                stop = token.start() + length
                word = text[token.start() : stop]
                goes_on = word[-1].isalnum() and text[stop : stop + 1].isalnum()
                respelling = self._entries.get(word, self._entries.get(word.lower()))
                if respelling is not None and not goes_on:
                    yield Match(token.start(), stop, respelling)
                    position = stop
                    break


def open_lexicon(path: Path | None) -> Lexicon:
    """Load a lexicon: a PLS file if it is XML, otherwise lines `word = respelling`. Raises `ConfigurationError`."""
    if path is None:
        return Lexicon({})
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigurationError(f"lexicon {path} is larger than {MAX_FILE_BYTES // 2**20} MiB; split it")
        source = path.read_text("utf-8-sig")
        entries = _Pls.read(source) if source.lstrip().startswith("<") else read_lines(source)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"lexicon {path} cannot be read: {error}") from None
    except MarkupError as error:
        raise ConfigurationError(f"lexicon {path}: {str(error).removeprefix('text: ')}") from None
    return Lexicon(entries)


def read_lines(source: str) -> dict[str, str]:
    """Parse lines `word = respelling`; # begins a comment line. Raises `MarkupError`."""
    entries: dict[str, str] = {}
    for number, line in enumerate(source.splitlines(), 1):
        word, equals, respelling = (part.strip() for part in line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (word and equals and respelling):
            raise MarkupError("text", f"line {number}, column 1: {line.strip()[:60]!r} is not word = respelling")
        entries[word] = respelling
    return entries


class _Pls:
    """Reads graphemes and aliases of a PLS document. Lexemes that have only phonemes are left out."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.num_left_out = 0
        self._graphemes: list[str] = []
        self._alias = self._content = ""

    @classmethod
    def read(cls, source: str) -> dict[str, str]:
        reader = cls()
        read_xml(source, reader)
        if reader.num_left_out:
            logger.warning("left out %d lexemes that have no alias: phonemes are not supported", reader.num_left_out)
        return reader.entries

    def start(self, name: str, attributes: dict[str, str], offset: int) -> None:  # noqa: ARG002
        self._content = ""
        if name == "lexeme":
            self._graphemes, self._alias = [], ""

    def text(self, data: str, start: int, stop: int) -> None:  # noqa: ARG002
        self._content += data

    def end(self, name: str, offset: int) -> None:  # noqa: ARG002
        content = " ".join(self._content.split())
        if name == "grapheme" and content:
            self._graphemes.append(content)
        elif name == "alias":
            self._alias = self._alias or content  # the first is the preferred one
        elif name == "lexeme":
            self.num_left_out += not self._alias
            self.entries |= dict.fromkeys(self._graphemes, self._alias) if self._alias else {}
