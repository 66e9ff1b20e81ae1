"""Incremental base64 decoding matches one-shot decoding, for valid and invalid input."""

from __future__ import annotations

import base64
import binascii
from itertools import product

import pytest

from s1_mini.server import schemas
from s1_mini.server.errors import InvalidError
from s1_mini.server.schemas import decode_base64


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "BASE64_WINDOW", 8)


@pytest.mark.parametrize("length", range(30))
def test_encoded_data_is_decoded(length: int) -> None:
    content = bytes(range(length))

    assert decode_base64(base64.b64encode(content).decode()) == content
    assert decode_base64(f"data:audio/wav;base64,{base64.b64encode(content).decode()}") == content


def test_input_that_is_invalid_as_a_whole_is_invalid_in_pieces() -> None:
    for letters in product("A=!", repeat=4):
        for text in ("".join(letters), "QUJD" * 3 + "".join(letters), "".join(letters) + "QUJDQUJD"):
            if text.endswith("==="):
                continue  # accepted by Python, but not by the server
            try:
                expected = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                with pytest.raises(InvalidError, match="is not base64"):
                    decode_base64(text)
            else:
                assert decode_base64(text) == expected


@pytest.mark.parametrize("text", ["QUJDQ", "QUJDQUI", "QUJD=", "QUJD====", "QQ==QUJD"])
def test_input_that_is_truncated_or_has_trailing_data_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="is not base64"):
        decode_base64(text)
