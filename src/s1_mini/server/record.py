"""The record of one request, filled while it runs and written as one log line."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection
from starlette.responses import Response

from s1_mini.server.errors import code_of, error_response, row_of

if TYPE_CHECKING:
    from s1_mini.server.accounts import Holding
    from s1_mini.server.tracing import RequestTrace
    from s1_mini.types import Timing

SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass
class RequestLog:
    """One request; times are `time.perf_counter()` seconds."""

    id: str
    method: str
    path: str
    started: float = field(default_factory=time.perf_counter)
    client: str = ""  # the client that is charged
    key: str = ""  # name of the client's API key, if it has one
    holding: Holding | None = None
    unread: set[Callable[[], None]] = field(default_factory=set)  # each charges a stream's audio that was not read
    route: str | None = None  # path template, such as /v1/voices/{name}
    status: int = 0
    error_response: Callable[[BaseException, str | None], Response] = error_response  # in the client's error format
    code: str | None = None  # error code, including errors after the status was sent (see `fail`)
    voice: str | None = None
    audio_format: str | None = None
    streams: bool = False
    waiting: int = 0  # number of waiting requests in the engine's queue when this one arrived
    spoken: float | None = None  # time of submission to the engine
    first_chunk: float | None = None
    timing: Timing | None = None  # timing of the first text
    failed_status: int = 0  # of an error after the head of the response, or in a session
    characters: int = 0  # of the texts that were spoken, at least in part, with markup
    trace: RequestTrace | None = None
    frames: int = 0
    audio_s: float = 0.0

    def for_part(self, holding: Holding | None = None) -> RequestLog:
        """Return a separate record for one of several texts of this request."""
        holding = holding or self.holding
        return RequestLog(self.id, self.method, self.path, client=self.client, holding=holding, trace=self.trace)

    @property
    def ids(self) -> dict[str, str]:
        """The fields that all log lines of the request have."""
        return {"request_id": self.id} | ({} if self.trace is None else {"trace_id": self.trace.id})

    def end_trace(self) -> None:
        """End the request's span, if it is traced."""
        if self.trace is not None:
            figures = {} if self.spoken is None else {"tokens": self.frames, "audio_seconds": self.audio_s}
            self.trace.end(
                self.route, self.status, self.code, figures, has_failed=max(self.status, self.failed_status) >= 500
            )

    def fail(self, error: BaseException) -> None:
        """Note an error, unless an error with a higher status has happened before, in another text of a session."""
        if (status := row_of(error).status) >= self.failed_status:
            self.code, self.failed_status = code_of(error), status

    @property
    def generation_s(self) -> float:
        return 0.0 if self.spoken is None else time.perf_counter() - self.spoken

    def hear(self, frames: int, audio_s: float, timing: Timing | None = None) -> None:
        if self.first_chunk is None:
            self.first_chunk = time.perf_counter()
        self.timing = self.timing or timing
        self.frames += frames
        self.audio_s += audio_s

    def fields(self) -> dict[str, Any]:
        now = time.perf_counter()
        fields: dict[str, Any] = {
            **self.ids,
            "method": self.method,
            "route": self.route or self.path[:200],
            "status": self.status,
            "total_ms": _ms(now - self.started),
        }
        if self.code is not None:
            fields["code"] = self.code
        if self.key:
            fields["key"] = self.key
        if self.spoken is not None:
            factor = round((now - self.spoken) / self.audio_s, 3) if self.audio_s else None
            fields |= {
                "voice": self.voice,
                "format": self.audio_format,
                "stream": self.streams,
                "waiting": self.waiting,
                "body_ms": _ms(self.spoken - self.started),
                "queue_ms": _ms(self.timing.queue_s if self.timing else None),
                "prefill_ms": _ms(self.timing.prefill_s if self.timing else None),
                "first_chunk_ms": None if self.first_chunk is None else _ms(self.first_chunk - self.started),
                "characters": self.characters,
                "frames": self.frames,
                "audio_s": round(self.audio_s, 3),
                "real_time_factor": factor,
            }
        return fields


def sane_id(given: str | None) -> str:
    """Return the client's request id if it is valid, otherwise a new one."""
    return given if given and SANE_ID.fullmatch(given) else secrets.token_hex(8)


def record_of(connection: HTTPConnection) -> RequestLog:
    record = connection.state.record
    assert isinstance(record, RequestLog)
    return record


def record_in(scope: Mapping[str, Any] | None) -> RequestLog | None:
    """Return the record of a protocol's current request, or None before the first."""
    record: RequestLog | None = (scope or {}).get("state", {}).get("record")
    return record


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
