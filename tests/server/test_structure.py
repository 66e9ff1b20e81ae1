"""JSON is limited by its number of structural characters before it is parsed."""

from __future__ import annotations

import json

import pytest

from s1_mini.server.bodies import MAX_ESCAPES, MAX_GAP, MAX_MARKS, check_structure
from s1_mini.server.errors import BodyError


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"text": "a" * 10_000_000}).encode(),
        json.dumps({"text": ',[{:"\\' * 50_000}).encode(),
        json.dumps({"items": [{"text": "Hi.", "voice": None}] * 100}, indent=8).encode(),
        b'{"a":"","b":"\\\\","c":"\\""}',
        b'{"a":"never ended \\',
        b"",
    ],
    ids=lambda data: data[:20],
)
def test_large_texts_with_any_content_pass(data: bytes) -> None:
    check_structure(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" + b"1," * MAX_MARKS + b"1]", f"more than {MAX_MARKS} JSON tokens"),
        (b"[" * (MAX_MARKS + 1), f"more than {MAX_MARKS} JSON tokens"),
        (b"{" + b'"k":1,' * MAX_MARKS + b"}", f"more than {MAX_MARKS} JSON tokens"),
        (b'""' * (MAX_MARKS + 1), f"more than {MAX_MARKS} JSON tokens"),
        (b'{"seed":' + b"1" * (MAX_GAP + 1) + b"}", "without a JSON token"),
        (b" " * (MAX_GAP + 1) + b"{}", "without a JSON token"),
        (b'{"text":"' + b"\\n" * (MAX_ESCAPES + 1) + b'"}', "backslashes"),
    ],
    ids=["list", "depth", "keys", "strings", "number", "spaces", "escapes"],
)
def test_json_that_is_slow_to_parse_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BodyError, match=reason):
        check_structure(data)


def test_structural_characters_count_outside_of_strings_only() -> None:
    with pytest.raises(BodyError, match="more than 4 JSON tokens"):
        check_structure(b'["a\\"[[[[", "]", 1, 2]', 4)
    check_structure(b'["a\\"[[[[", "]"]', 4)
