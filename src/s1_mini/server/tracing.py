"""Traces of requests, sent over OTLP/HTTP to the collector that OpenTelemetry's own variables name.

The spans of a request and of its texts are open while these run. All others are created when a text has ended, from the
times that the engine and the encoder have noted, so that nothing is added to the generation itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from s1_mini.extras import require
from s1_mini.version import __version__

if TYPE_CHECKING:
    from s1_mini.server.schemas import SpeechRequest
    from s1_mini.types import Phases

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
# Methods by which spans are named; a client can send any
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "WEBSOCKET", "WYOMING")
OTHER = "_OTHER"  # OpenTelemetry's name for all others
CLOSE_S = 3.0  # time for sending the last spans when the server ends
MAX_STATE = 512  # characters of tracestate; a longer one is ignored
# SageMaker passes on no other header of a client that could hold a traceparent; see `sagemaker/invocations.py`.
ATTRIBUTES, MAX_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes", 1024


def open_tracing() -> Tracing | None:
    """Return what traces requests; None if the variables name no collector, or if the extra is missing."""
    endpoint, protocol = _first(ENDPOINTS), _first(PROTOCOLS)
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if endpoint is None or is_disabled or os.environ.get("OTEL_TRACES_EXPORTER", "").strip() not in ("", "otlp"):
        return None
    if protocol is not None and (given := os.environ[protocol].strip()) != PROTOCOL:
        logger.warning("requests are not traced: %s=%s is not supported; use %s", protocol, given, PROTOCOL)
        return None
    if not (url := os.environ[endpoint].strip()).lower().startswith(("http://", "https://")):
        logger.warning("requests are not traced: %s must begin with http:// or https://", endpoint)
        return None
    try:
        require("otel", endpoint)
        parts, tracing = urlsplit(url), Tracing()
    except Exception as error:  # a variable is invalid, in the SDK or in a plug-in of it
        logger.warning("requests are not traced: %s", error)
        return None
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without a password
    logger.info("requests are traced", extra={"fields": {"event": "tracing", "endpoint": shown}})
    return tracing


def _first(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if os.environ.get(name, "").strip()), None)


class Tracing:
    """The traces of one server."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.version": __version__})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):  # no variable has a name
            resource = resource.merge(Resource({"service.name": "s1-mini"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("s1_mini", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        # It warns of each invalid tracestate, with what the client has sent.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)

    def begin(self, request_id: str, method: str, headers: Headers | None = None) -> RequestTrace:
        """Begin the span of a request, below that of the client if `headers` has a valid traceparent."""
        context = self._extract({} if headers is None else _carrier(headers))
        return RequestTrace(self._tracer, request_id, method, context)

    async def close(self) -> None:
        """Send the last spans; give up after `CLOSE_S`, such as if the collector does not answer."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name="s1-mini-traces", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(closed.wait(), CLOSE_S)


def _carrier(headers: Headers) -> dict[str, str]:
    """Return the trace context of a client. It is ignored if given twice or too long; baggage is never read."""
    parents, states = headers.getlist("traceparent"), headers.getlist("tracestate")
    if not parents:
        items = headers.get(ATTRIBUTES, "")[:MAX_ATTRIBUTES].replace(",", " ").split()
        parents = [item.removeprefix("traceparent=") for item in items if item.startswith("traceparent=")]
    state = ",".join(states)
    carrier = {"traceparent": parents[0]} if len(parents) == 1 else {}
    return carrier | ({"tracestate": state} if 0 < len(state) <= MAX_STATE else {})


def _ours(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with our prefix."""
    return {f"s1_mini.{name}": value for name, value in attributes.items()}


class RequestTrace:
    """The span of a request or of a session, from its head to the end of its response."""

    def __init__(self, tracer: Any, request_id: str, method: str, context: Any) -> None:
        from opentelemetry.trace import SpanKind, format_trace_id, set_span_in_context

        self._tracer, self._offset_s = tracer, time.time() - time.monotonic()
        attributes = {"s1_mini.request_id": request_id}
        method = method if method in METHODS else OTHER
        self._method = "HTTP" if method == OTHER else method
        attributes |= {} if method == "WYOMING" else {"http.request.method": "GET" if method == "WEBSOCKET" else method}
        self._span = tracer.start_span(self._method, context, SpanKind.SERVER, attributes)
        self._context = set_span_in_context(self._span, context)
        self.id: str = format_trace_id(self._span.get_span_context().trace_id)

    def speak(self, request: SpeechRequest) -> SpeechTrace | None:
        """Begin the span of a text; None if the trace is not sampled."""
        if not self._span.get_span_context().trace_flags.sampled:  # an asynchronous invocation's span has ended
            return None
        speech = request.speech
        voice = "named" if speech.voice is not None else "reference" if speech.references else "default"
        return SpeechTrace(
            self, _ours({"voice_kind": voice, "format": request.audio_format, "stream": request.streams})
        )

    def end(
        self,
        route: str | None,
        status: int,
        code: str | None,
        figures: Mapping[str, float],
        *,
        has_failed: bool = False,
    ) -> None:
        """End the request with its status and, if there was one, the code of its error."""
        from opentelemetry.trace import Status, StatusCode

        span = self._span
        span.update_name(self._method if route is None else f"{self._method} {route}")
        attributes: dict[str, Any] = {"http.response.status_code": status, **_ours(figures)}
        optional = {"http.route": route, "error.type": code}
        span.set_attributes(attributes | {name: value for name, value in optional.items() if value is not None})
        if has_failed:
            span.set_status(Status(StatusCode.ERROR, code))
        span.end()

    def add(self, name: str, began: float, context: Any = None, **more: Any) -> Any:
        """Begin a span below `context`, by default below the request; `began` is a time of `time.monotonic`."""
        return self._tracer.start_span(name, context or self._context, start_time=self.at(began), **more)

    def at(self, moment: float) -> int:
        """Convert a time of `time.monotonic` to nanoseconds since 1970."""
        return round((moment + self._offset_s) * 1e9)


class SpeechTrace:
    """The span of one text, and those of its phases. All methods but `report` are called on the event loop."""

    def __init__(self, request: RequestTrace, attributes: dict[str, Any]) -> None:
        from opentelemetry.trace import set_span_in_context

        self._request, self._loop = request, asyncio.get_running_loop()
        self._span = request.add("speech", time.monotonic(), attributes=attributes)
        self._context = set_span_in_context(self._span)
        self._encoding: list[float] = []  # when the encoder's first call began and the last one ended
        self._encoding_s = 0.0  # time in the encoder

    def report(self, phases: Phases) -> None:
        """Create the spans of an ended text soon. Called by any thread, such as one that holds the engine's lock."""
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._end, phases)

    def refuse(self, code: str) -> None:
        """End the span of a text that the engine has refused."""
        self._span.set_attributes(_ours({"finish_reason": code}))
        self._span.end()

    def _end(self, phases: Phases) -> None:
        begins = [*phases.begins.items()]
        for (name, began), ended in zip(begins, [*(began for _, began in begins[1:]), phases.ended], strict=True):
            self._add(name, began, ended)
        if phases.first_audio is not None and "generation" in phases.begins:  # not for a text of pauses
            self._add("first_audio", phases.begins["generation"], phases.first_audio)
        found = {"finish_reason": phases.reason, "tokens": phases.tokens, "audio_seconds": phases.audio_s}
        self._span.set_attributes(_ours(found | ({} if phases.slot is None else {"slot": phases.slot})))
        self._span.end(self._request.at(phases.ended))

    def note_encoding(self, started: float) -> None:
        """Note a call of the encoder, from `started` until now."""
        now = time.monotonic()
        self._encoding = [self._encoding[0] if self._encoding else started, now]
        self._encoding_s += now - started

    def close(self) -> None:
        """Create the span of encoding, which is done or was cancelled."""
        if self._encoding:
            self._add("encoding", *self._encoding, attributes=_ours({"busy_seconds": self._encoding_s}))
            self._encoding = []

    def _add(self, name: str, began: float, ended: float, **more: Any) -> None:
        self._request.add(name, began, self._context, **more).end(self._request.at(ended))
