"""Lexicons that Amazon Polly's clients upload: W3C PLS documents, in memory or in a folder."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from s1_mini.exceptions import MarkupError, ParameterError, StorageError
from s1_mini.files import files, read_regular
from s1_mini.server.errors import InvalidError, quoted
from s1_mini.text.lexicon import Pls
from s1_mini.types import check_lexicon

logger = logging.getLogger(__name__)

MAX_LEXICONS = 100  # Polly's limits
MAX_CHARACTERS = 40_000
NAME = re.compile(r"[0-9A-Za-z]{1,20}", re.ASCII)
_FILE = "polly-{}.pls"

parse = lru_cache(MAX_LEXICONS)(Pls)


class LexiconNotFoundError(InvalidError):
    """No lexicon has that name."""


class LexiconSizeExceededError(InvalidError):
    """A lexicon is too long."""


class MaxLexiconsNumberExceededError(InvalidError):
    """Too many lexicons are stored."""


class InvalidLexiconError(InvalidError):
    """A lexicon is not a PLS document with entries, or its file cannot be read."""


# The names are Polly's, with Error in place of Exception.
LEXICON_ERRORS = LexiconNotFoundError, LexiconSizeExceededError, MaxLexiconsNumberExceededError, InvalidLexiconError


class Lexicons:
    """The stored lexicons by name, of all clients. Safe to use from several threads."""

    def __init__(self, folder: Path | None, *, has_peers: bool = False) -> None:
        """`has_peers`: whether other processes serve the same clients, so that lexicons need a folder."""
        self._folder, self._has_peers = folder, has_peers
        self._in_memory: dict[str, str] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return all names, sorted."""
        if self._folder is None:
            return sorted(self._in_memory)
        found = (path.stem.removeprefix("polly-") for path in self._folder.glob(_FILE.format("*")))
        return sorted(filter(NAME.fullmatch, found))

    def get(self, name: str, field: str = "LexiconName") -> str:
        """Return a document. Raises `LexiconNotFoundError`, or `InvalidLexiconError` if its file cannot be read."""
        try:
            if self._folder is None or not NAME.fullmatch(name):
                return self._in_memory[name]
            return read_regular(self._folder / _FILE.format(name), 4 * MAX_CHARACTERS).decode()
        except (KeyError, FileNotFoundError):
            raise self._not_found(name, field) from None
        except OSError as error:
            raise InvalidLexiconError(field, f"the file of {name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidLexiconError(field, f"the file of {name} is not UTF-8; upload it again") from None

    def put(self, name: str, content: str) -> None:
        """Check and store a lexicon; it replaces one of the same name. Raises `InvalidError` or `StorageError`."""
        if not NAME.fullmatch(name):
            raise InvalidError("LexiconName", f"{quoted(name)} is not 1 to 20 letters and digits")
        if self._has_peers and self._folder is None:
            reason = "cannot be stored for all replicas; set S1_MINI_SERVER_LEXICONS_PATH to a folder that they share"
            raise InvalidError("LexiconName", reason)
        if len(content) > MAX_CHARACTERS:
            reason = f"has {len(content)} characters; the limit is {MAX_CHARACTERS}"
            raise LexiconSizeExceededError("Content", reason)
        try:
            entries = parse(content).entries
            check_lexicon(entries)
        except (MarkupError, ParameterError) as error:
            raise InvalidLexiconError("Content", error.reason) from None
        if not entries:
            reason = "has no lexeme with a grapheme and an alias; phonemes are not supported"
            raise InvalidLexiconError("Content", reason)
        with self._lock:
            names = self.names()
            similar = next((each for each in names if each != name and each.lower() == name.lower()), None)
            if similar is not None:  # on Windows and macOS both would be one file
                reason = f"{name} differs only in case from the stored {similar}; use another name, or delete {similar}"
                raise InvalidError("LexiconName", reason)
            if name not in names and len(names) >= MAX_LEXICONS:
                reason = f"{name} cannot be stored: the limit of {MAX_LEXICONS} lexicons is reached; delete one of them"
                raise MaxLexiconsNumberExceededError("LexiconName", reason)
            if self._folder is None:
                self._in_memory[name] = content
                return
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                files.publish(self._folder / _FILE.format(name), content.encode())
            except OSError as error:
                raise StorageError(f"the lexicon {name} cannot be written: {error.strerror}") from None

    def delete(self, name: str) -> None:
        """Delete a lexicon. Raises `LexiconNotFoundError` or `StorageError`."""
        try:
            if self._folder is None or not NAME.fullmatch(name):
                del self._in_memory[name]
            else:
                files.remove(self._folder / _FILE.format(name))
        except (KeyError, FileNotFoundError):
            raise self._not_found(name, "LexiconName") from None
        except OSError as error:
            raise StorageError(f"the lexicon {name} cannot be deleted: {error.strerror}") from None

    def merged(self, names: Sequence[str]) -> dict[str, str]:
        """Return the entries of several lexicons; earlier ones take precedence. Raises the errors of `get`."""
        entries: dict[str, str] = {}
        for name in names:
            entries = self._parsed(name, "LexiconNames").entries | entries
        return entries

    def describe(self, name: str) -> dict[str, Any]:
        """Return the attributes of a lexicon as Polly does. Raises the errors of `get`."""
        document, size = self._parsed(name, "LexiconName"), len(self.get(name).encode())
        return {"LanguageCode": document.language, "LexemesCount": len(document.entries), "Size": size}

    def describe_all(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of all lexicons by name; log and omit the lexicons that cannot be read."""
        described = {}
        for name in self.names():
            try:
                described[name] = self.describe(name)
            except LexiconNotFoundError:
                continue  # it has just been deleted
            except InvalidLexiconError as error:
                logger.warning("skipping a lexicon: %s", error.reason)
        return described

    def _parsed(self, name: str, field: str) -> Pls:
        try:
            return parse(self.get(name, field))
        except MarkupError as error:
            raise InvalidLexiconError(field, f"the file of {name}: {error.reason}") from None

    def _not_found(self, name: str, field: str) -> LexiconNotFoundError:
        return LexiconNotFoundError(
            field, f"unknown lexicon {quoted(name)}; available: {', '.join(self.names()) or 'none'}"
        )
