"""AWS event-stream framing: what `InvokeEndpointWithResponseStream` sends, as bytes. Pure; the local endpoint uses it.

A message is, all numbers big-endian::

    u32 total length | u32 length of headers | u32 crc32 of these 8 bytes
    headers: u8 length, name, u8 type (7: text), u16 length, value
    payload
    u32 crc32 of everything before
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping

MEDIA_TYPE = "application/vnd.amazon.eventstream"
MAX_PAYLOAD_BYTES = 16 * 2**20  # what the strictest of AWS's decoders takes; botocore's takes 24 MiB
MAX_HEADERS_BYTES = 128 * 2**10

_TEXT = 7
_PRELUDE_BYTES, _CRC_BYTES = 12, 4


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Frame one message with text headers, in their order.

    Raises `ValueError` for a header name that is not 1 to 255 bytes long, a value over 32,767 bytes, or headers or a
    payload over `MAX_HEADERS_BYTES` or `MAX_PAYLOAD_BYTES`.
    """
    block = b"".join(_encode_header(name, value) for name, value in headers.items())
    if len(block) > MAX_HEADERS_BYTES:
        raise ValueError(f"headers of {len(block)} bytes; at most {MAX_HEADERS_BYTES} fit into a message")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} fit into a message")
    lengths = struct.pack("!II", _PRELUDE_BYTES + len(block) + len(payload) + _CRC_BYTES, len(block))
    prelude = lengths + struct.pack("!I", zlib.crc32(lengths))
    message = prelude + block + payload
    return message + struct.pack("!I", zlib.crc32(message))


def payload_part(payload: bytes) -> bytes:
    """Frame a piece of the answer as a `PayloadPart` event."""
    headers = {
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
        ":message-type": "event",
    }
    return encode_message(headers, payload)


def payload_parts(payload: bytes) -> Iterator[bytes]:
    """Frame `payload` as as many `PayloadPart` events as it needs; none for nothing."""
    for start in range(0, len(payload), MAX_PAYLOAD_BYTES):
        yield payload_part(payload[start : start + MAX_PAYLOAD_BYTES])


def model_stream_error(error_code: str, message: str) -> bytes:
    """Frame the end of an answer that broke off as a `ModelStreamError` exception."""
    headers = {
        ":exception-type": "ModelStreamError",
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return encode_message(headers, json.dumps({"Message": message, "ErrorCode": error_code}).encode())


def _encode_header(name: str, value: str) -> bytes:
    name_bytes, value_bytes = name.encode(), value.encode()
    if not 1 <= len(name_bytes) <= 255:
        raise ValueError(f"a header name of {len(name_bytes)} bytes; 1 to 255 are allowed")
    if len(value_bytes) > 2**15 - 1:
        raise ValueError(f"header {name}: a value of {len(value_bytes)} bytes; at most 32,767 are allowed")
    head = struct.pack("!B", len(name_bytes)) + name_bytes + struct.pack("!BH", _TEXT, len(value_bytes))
    return head + value_bytes
