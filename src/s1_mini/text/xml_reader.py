"""A hardened XML reader for short documents from clients: without document types, entities and external files.

Errors name the line and the column. The depth of elements and the number and length of attributes are limited.
"""

from __future__ import annotations

import re
from typing import Protocol
from xml.parsers import expat

from s1_mini.exceptions import MarkupError

MAX_DEPTH = 32
MAX_ATTRIBUTES = 16
MAX_ATTRIBUTE_LENGTH = 500

_REFERENCE = re.compile(r"&[#\w]{1,40};")


class Handler(Protocol):
    """Receives the elements and the text of a document, with their positions in characters."""

    def start(self, name: str, attributes: dict[str, str], offset: int) -> None:
        """Open an element."""

    def end(self, name: str, offset: int) -> None:
        """Close an element."""

    def text(self, data: str, start: int, stop: int) -> None:
        """Receive text that stands for characters start … stop of the source."""


def error_at(source: str, offset: int, reason: str) -> MarkupError:
    """Return the error for the character of a source at `offset`."""
    line_start = source.rfind("\n", 0, offset) + 1
    return _error(source.count("\n", 0, offset) + 1, offset - line_start + 1, reason)


def read_xml(source: str, handler: Handler) -> None:
    """Read a document. Raises `MarkupError`, also for declarations of entities and references to them."""
    try:
        content = source.encode()
    except UnicodeEncodeError as error:
        reason = "half of a surrogate pair is not a character; decode the text before you send it"
        raise error_at(source, error.start, reason) from None
    reader = _Reader(source, content, handler)
    try:
        reader.parser.Parse(content, True)
    except expat.ExpatError as error:
        raise _error(error.lineno, error.offset + 1, f"not well-formed XML: {expat.ErrorString(error.code)}") from None
    finally:
        del reader.parser  # its handlers refer to the reader


class _Reader:
    """Checks the events of a parser and adds their positions."""

    def __init__(self, source: str, content: bytes, handler: Handler) -> None:
        self._source, self._content, self._handler = source, content, handler
        self._byte = self._offset = 0  # the last known position, in bytes and in characters
        self._depth = 0
        self.parser = parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._refuse

    def _place(self) -> int:
        byte = self.parser.CurrentByteIndex
        self._offset += len(self._content[self._byte : byte].decode(errors="ignore"))
        self._byte = byte
        return self._offset

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        place, self._depth = self._place(), self._depth + 1
        length = max(map(len, (name, *attributes, *attributes.values())))
        reason = None
        if self._depth > MAX_DEPTH:
            reason = f"is nested more than {MAX_DEPTH} elements deep"
        elif len(attributes) > MAX_ATTRIBUTES:
            reason = f"has more than {MAX_ATTRIBUTES} attributes"
        elif length > MAX_ATTRIBUTE_LENGTH:
            reason = f"has a name or an attribute of {length} characters; the limit is {MAX_ATTRIBUTE_LENGTH}"
        if reason is not None:
            raise error_at(self._source, place, f"<{name[:40]}> {reason}")
        self._handler.start(name, attributes, place)

    def _end(self, name: str) -> None:
        self._depth -= 1
        self._handler.end(name, self._place())

    def _text(self, data: str) -> None:
        place = self._place()
        stop = place + len(data)
        # A reference is read as one character. In a CDATA section, `&amp;` is literal text, so the data is longer.
        reference = _REFERENCE.match(self._source, place) if len(data) == 1 else None
        if reference is not None:
            stop = reference.end()
        elif self._source.startswith("\r\n", place):
            stop = place + 2
        self._handler.text(data, place, stop)

    def _refuse(self, *_: object) -> int:
        reason = "document types and entities are not allowed; remove <!DOCTYPE"
        raise error_at(self._source, self._place(), reason)


def _error(line: int, column: int, reason: str) -> MarkupError:
    return MarkupError("text", f"line {line}, column {column}: {reason}")
