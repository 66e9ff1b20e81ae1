"""How much structure a JSON body may have, counted before anything is built of it.

A parser makes an object of every value, and validation an error of every wrong one: eight megabytes of `[1,1,…]` cost
half a minute and five gigabytes. Counting costs milliseconds, stops at the limit and gives other threads their turn.
"""

from __future__ import annotations

import re

from s1_mini.server.errors import BodyError

MAX_MARKS = 2048  # strings, colons, commas and brackets of a body that is no batch: many times what a request has
MARKS_PER_ITEM = 32  # of each text of a batch, beyond that
MAX_ESCAPES = 2**20  # backslashes: 32 texts of the greatest length, every letter of them written as \u0000
MAX_GAP = 4096  # bytes between two marks outside of strings; a longer run is a number made to be slow, or no JSON

_MARK = re.compile(rb'["\[{,:]')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WINDOW = 2**16  # bytes looked at in one call, which holds the interpreter


def check_structure(data: bytes, max_marks: int = MAX_MARKS) -> None:
    """Raise `BodyError` if `data` has more than `max_marks` marks, or a number of thousands of digits.

    Whether it is JSON at all, the parser tells.
    """
    num_escapes = 0
    for start in range(0, len(data), _WINDOW):
        num_escapes += data.count(b"\\", start, start + _WINDOW)
        if num_escapes > MAX_ESCAPES:
            raise BodyError(f"the body has more than {MAX_ESCAPES} backslashes")
    position, count = 0, 0
    while (found := _MARK.search(data, position, position + MAX_GAP)) is not None:
        position = found.end()
        count += 1
        if count > max_marks:
            raise BodyError(f"the body has more than {max_marks} marks of JSON; send fewer items at once")
        if found.group() == b'"':
            position = _after_string(data, position)
    if len(data) - position > MAX_GAP:
        raise BodyError(f"the body has {MAX_GAP} bytes without a mark of JSON after byte {position}")


def _after_string(data: bytes, position: int) -> int:
    """Give where a string that begins at `position` is over; the end of `data` if it is nowhere."""
    end = data.find(b'"', position)
    if end > position and data[end - 1 : end] != b"\\":
        return end + 1
    while position < len(data):
        found = _STRING.match(data, position, position + _WINDOW)
        end = position if found is None else found.end()
        if data[end : end + 1] == b'"':
            return end + 1
        if end == position:  # a backslash and nothing behind it
            break
        position = end
    return len(data)
