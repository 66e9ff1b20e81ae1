"""Pronunciation lexicons: words and their respellings, from W3C PLS documents, text files or a request."""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from s1_mini.exceptions import ConfigurationError, MarkupError
from s1_mini.files import read_regular
from s1_mini.text.xml_reader import read_xml

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 * 2**20
SUFFIX = ".lexicon"  # of a voice's lexicon, next to the file of the voice

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
        self._layers: list[_Layer] = [_Layer(own), *(below._layers if below else ())]

    def __bool__(self) -> bool:
        """Return whether it has entries."""
        return bool(self._entries)

    def merged(self, entries: Mapping[str, str]) -> Lexicon:
        """Return a lexicon with more entries, which take precedence."""
        return Lexicon(entries, self) if entries else self

    def find(self, text: str) -> Iterator[Match]:
        """Yield the matches in a text in order; if several begin at one place, the longest."""
        position, folded = 0, _folded(text)
        while (token := _TOKEN.search(text, position)) is not None:
            start, position = token.span()
            length = max(layer.length_at(text, folded, start, position) for layer in self._layers)
            word = text[start : start + length]
            respelling = self._entries.get(word, self._entries.get(word.lower()))
            if respelling is not None:
                position = start + length
                yield Match(start, position, respelling)


class _Layer:
    """The words of one lexicon: those in lower case match any case."""

    def __init__(self, words: Iterable[str]) -> None:
        every = set(words)
        lower = {word for word in every if word == word.lower()}
        self._lower, self._cased = _Words(lower), _Words(every - lower)

    def length_at(self, text: str, folded: str, start: int, stop: int) -> int:
        """Return the length of the longest word at `start` of a text, whose first token ends at `stop`; 0 if none."""
        return max(self._lower.length_at(folded, start, stop), self._cased.length_at(text, start, stop))


class _Words:
    """Words in order, to find those that a text begins with in a time that hardly depends on their number."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(words)
        self._firsts = {found.group() for word in self._words if (found := _TOKEN.match(word))}
        self._longest = max(map(len, self._words), default=0)
        self._ends_in_word = [word[-1].isalnum() for word in self._words]  # a letter or digit must not follow
        self._shorter: list[int] = []  # for each word, the number of the longest other word that it begins with, or -1
        for number, word in enumerate(self._words):
            shorter = number - 1
            while shorter >= 0 and not word.startswith(self._words[shorter]):
                shorter = self._shorter[shorter]
            self._shorter.append(shorter)

    def length_at(self, text: str, start: int, stop: int) -> int:
        """Return the length of the longest word at `start` of a text, whose first token ends at `stop`; 0 if none."""
        if text[start:stop] not in self._firsts:
            return 0
        number = bisect_right(self._words, text[start : start + self._longest]) - 1
        while number >= 0:
            word = self._words[number]
            end = start + len(word)
            # Checked before the word, because a text can begin with many words that end inside one of its own.
            goes_on = self._ends_in_word[number] and text[end : end + 1].isalnum()
            if not goes_on and text.startswith(word, start):
                return len(word)
            number = self._shorter[number]
        return 0


def _folded(text: str) -> str:
    """Return a text in lower case, without the few changes that would move later characters."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(each if len(each.lower()) != 1 else each.lower() for each in text)


class Lexicons:
    """The lexicon of all requests, and the lexicons of single voices, whose entries take precedence."""

    def __init__(
        self, path: Path | None = None, folders: Iterable[Path] = (), default_voice: str | None = None
    ) -> None:
        """Load a file for all requests, and the files of voices in folders. Raises `ConfigurationError`."""
        self._shared = Lexicon(read_lexicon(path) if path else {})
        self._files = {file.stem: file for folder in folders for file in sorted(folder.glob(f"*{SUFFIX}"))}
        self._voices: dict[str | None, Lexicon] = {
            voice: self._shared.merged(read_lexicon(file)) for voice, file in self._files.items()
        }
        if default_voice in self._voices:
            self._voices[None] = self._voices[default_voice]

    def of(self, voice: str | None) -> Lexicon:
        """Return the lexicon for a voice; None is the default voice, and an empty name is a cloned recording.

        A lexicon is no longer used after its file was deleted, for example together with its voice.
        """
        if voice in self._voices and voice in self._files and not self._files[voice].exists():
            self._voices.pop(voice, None)
        return self._voices.get(voice, self._shared)


def read_lexicon(path: Path) -> dict[str, str]:
    """Read a lexicon: a PLS document if it is XML, otherwise lines `word = respelling`. Raises `ConfigurationError`."""
    try:
        source = read_regular(path, MAX_FILE_BYTES).decode("utf-8-sig")
        return Pls(source).entries if source.lstrip().startswith("<") else read_lines(source)
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ConfigurationError(f"lexicon {path} cannot be read: {reason}") from None
    except MarkupError as error:
        raise ConfigurationError(f"lexicon {path}: {error.reason}") from None


def read_lines(source: str) -> dict[str, str]:
    """Parse lines `word = respelling`; # begins a comment line. Raises `MarkupError`."""
    entries: dict[str, str] = {}
    for number, line in enumerate(source.splitlines(), 1):
        word, equals, respelling = (part.strip() for part in line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (word and equals and respelling):
            raise MarkupError(
                "text", f"line {number}, column 1: {line.strip()[:60]!r} is not of the form `word = respelling`"
            )
        entries[word] = respelling
    return entries


class Pls:
    """The graphemes and aliases of a PLS document. Lexemes that have only phonemes are left out."""

    def __init__(self, source: str) -> None:
        """Parse a document. Raises `MarkupError`."""
        self.entries: dict[str, str] = {}
        self.language = ""  # of the document, such as en-US
        self._num_left_out = 0
        self._graphemes: list[str] = []
        self._alias = self._content = ""
        read_xml(source, self)
        if self._num_left_out:
            logger.warning("left out %d lexemes that have no alias: phonemes are not supported", self._num_left_out)

    def start(self, name: str, attributes: dict[str, str], offset: int) -> None:  # noqa: ARG002
        self._content = ""
        if name == "lexicon":
            self.language = attributes.get("xml:lang", "")
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
            self._num_left_out += not self._alias
            self.entries |= dict.fromkeys(self._graphemes, self._alias) if self._alias else {}
