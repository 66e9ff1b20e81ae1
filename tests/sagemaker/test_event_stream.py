"""Event-stream messages are accepted by botocore's own parser, byte for byte and however they are split."""

from __future__ import annotations

import json

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer, EventStreamMessage
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import GenerationError
from s1_mini.sagemaker import local_endpoint
from s1_mini.sagemaker.local_endpoint import encode_message, model_stream_error, payload_parts

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
texts = st.text(st.characters(codec="utf-8"), max_size=200)


def parse(data: bytes, cut: int = 2**20) -> list[EventStreamMessage]:
    buffer = EventStreamBuffer()
    messages = []
    for start in range(0, len(data), cut):
        buffer.add_data(data[start : start + cut])
        messages.extend(buffer)
    return messages


@given(st.dictionaries(names, texts, max_size=5), st.binary(max_size=500), st.integers(1, 64))
def test_botocore_reads_back_what_was_written_however_it_is_cut(
    headers: dict[str, str], payload: bytes, cut: int
) -> None:
    messages = parse(encode_message(headers, payload) * 2, cut)

    assert [(message.headers, message.payload) for message in messages] == [(headers, payload)] * 2


def test_a_payload_part_is_an_event_of_109_bytes_around_four() -> None:
    (frame,) = payload_parts(b"RIFF")
    (message,) = parse(frame)

    assert len(frame) == 109
    assert message.headers[":event-type"] == "PayloadPart"
    assert message.headers[":message-type"] == "event"
    assert message.payload == b"RIFF"


def test_a_stream_error_is_an_exception_with_its_code() -> None:
    (message,) = parse(model_stream_error(GenerationError("3 samples are NaN")))
    answer = message.to_response_dict()

    assert answer["status_code"] == 400
    assert message.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(message.payload) == {
        "Message": "generation_failed: 3 samples are NaN",
        "ErrorCode": "StreamBroken",
    }


def test_one_changed_byte_is_noticed() -> None:
    frame = bytearray(*payload_parts(b"sound"))
    frame[-6] ^= 1

    with pytest.raises(ChecksumMismatch):
        parse(bytes(frame))


def test_a_long_payload_becomes_several_parts_and_none_becomes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_endpoint, "MAX_PAYLOAD_BYTES", 10)

    payloads = [message.payload for message in parse(b"".join(payload_parts(bytes(range(25)))))]

    assert [len(payload) for payload in payloads] == [10, 10, 5]
    assert b"".join(payloads) == bytes(range(25))
    assert list(payload_parts(b"")) == []
