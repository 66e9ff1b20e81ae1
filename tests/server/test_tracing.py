"""Traces of requests, sent to a stand-in for a collector, which decodes OTLP/HTTP with OpenTelemetry's own protocol."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx2
import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from commands import ENVIRONMENT
from door_room import raw_post
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.remote.engine_process import EngineProcess
from s1_mini.sagemaker.app import make_container_app
from s1_mini.sagemaker.async_store import open_store
from s1_mini.server import speech, tracing
from s1_mini.server.settings import ServerSettings
from tests.server.conftest import LONG_SPEECH, Door, listening, serving
from waiting import wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SPEECH = {"text": "Hi.", "seed": 1, "max_new_tokens": 20}
# The phases of an engine in order, then the spans that overlap them.
PHASES = ["text", "reference", "queue", "prefill", "generation"]


class Collector(ThreadingHTTPServer):
    """A collector for OTLP/HTTP."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Receiver)

    def named(self, name: str, count: int = 1) -> list[Span]:
        """Wait until as many spans of a name have arrived, and return them."""
        wait_until(lambda: len([span for span in self.spans if span.name == name]) >= count)
        return [span for span in self.spans if span.name == name]

    def below(self, parent: Span, *names: str) -> dict[str, Span]:
        """Wait for spans, one of each name, and return all children of `parent`."""
        wait_until(lambda: {*names} <= {each.name for each in self.spans if each.parent_span_id == parent.span_id})
        return {each.name: each for each in self.spans if each.parent_span_id == parent.span_id}

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        with cls() as collector:
            thread = threading.Thread(target=collector.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield collector
            finally:
                collector.shutdown()
                thread.join()


class Receiver(BaseHTTPRequestHandler):
    """Decodes spans."""

    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        content = self.rfile.read(int(self.headers["Content-Length"]))
        for each in ExportTraceServiceRequest.FromString(content).resource_spans:
            self.server.resources.append(values_of(each.resource))
            self.server.spans += [span for scope in each.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def values_of(owner: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource, without our prefix."""
    found = {}
    for pair in owner.attributes:
        found[pair.key.removeprefix("s1_mini.")] = getattr(pair.value, pair.value.WhichOneof("value"))
    return found


def is_ordered(spans: list[Span]) -> bool:
    times = [time for span in spans for time in (span.start_time_unix_nano, span.end_time_unix_nano)]
    return times == sorted(times)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that servers find in their environment."""
    with Collector.running() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield collector


@pytest.fixture
def traced(collector: Collector, small_engine: ProductionTTSEngine) -> Iterator[Door]:
    """A server that sends traces to the collector."""
    assert collector.server_port
    with serving(small_engine) as door:
        yield door


@pytest.fixture(scope="module")
def apart(tiny: Path) -> Iterator[EngineProcess]:
    """An engine in its own process."""
    with EngineProcess(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=2)) as engine:
        yield engine


def log_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "s1_mini.server.access"]


@pytest.mark.parametrize("place", ["small_engine", "apart"])
def test_a_request_continues_the_clients_trace_with_a_span_for_each_phase(
    place: str,
    collector: Collector,
    tone: np.ndarray,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    caplog.set_level(logging.INFO, "s1_mini.server.access")
    form = {name: str(value) for name, value in SPEECH.items()} | {"stream": "true", "format": "flac"}
    headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    recording = encode(tone * 0.77, 44_100, "wav")  # no other test has sent it, so it must be encoded
    with serving(request.getfixturevalue(place)) as door, door.http() as client:
        answer = client.post("/v1/tts", data=form, files={"reference_audio": recording}, headers=headers)
        (server,) = collector.named("POST /v1/tts")
    assert answer.status_code == 200

    (speech,) = collector.named("speech")
    spans = collector.below(speech, *PHASES, "first_audio", "encoding")
    assert {*spans} == {*PHASES, "first_audio", "encoding"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert (server.parent_span_id.hex(), server.trace_state, server.kind) == (PARENT, "vendor=1", Span.SPAN_KIND_SERVER)
    assert speech.parent_span_id == server.span_id
    assert is_ordered([spans[name] for name in PHASES])
    assert spans["first_audio"].start_time_unix_nano == spans["generation"].start_time_unix_nano
    assert server.start_time_unix_nano <= speech.start_time_unix_nano <= spans["text"].start_time_unix_nano
    assert spans["generation"].end_time_unix_nano == speech.end_time_unix_nano <= server.end_time_unix_nano
    assert spans["encoding"].end_time_unix_nano <= server.end_time_unix_nano
    assert values_of(spans["encoding"])["busy_seconds"] > 0

    found, whole = values_of(speech), values_of(server)
    assert found.items() >= {"voice_kind": "reference", "format": "flac", "stream": True, "slot": 0}.items()
    assert found["finish_reason"] in ("stop", "length")
    assert found["tokens"] == whole["tokens"] > 0
    assert found["audio_seconds"] == pytest.approx(whole["audio_seconds"])
    assert (whole["http.route"], whole["http.response.status_code"]) == ("/v1/tts", 200)
    assert collector.resources[0]["service.name"] == "s1-mini"
    (line,) = log_lines(caplog)
    assert (line["trace_id"], line["request_id"]) == (TRACE, whole["request_id"])


def test_a_failing_request_has_its_code_and_only_a_fault_of_the_server_is_an_error(
    collector: Collector, traced: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise RuntimeError("broken")

    with traced.http() as client:
        refused = client.post("/v1/tts", json={**SPEECH, "text": "<speak>", "text_type": "ssml"})
        monkeypatch.setattr(speech, "_encode_all", fail)
        failed = client.post("/v1/tts", json=SPEECH)
    assert (refused.status_code // 100, failed.status_code) == (4, 500)

    first, second = collector.named("POST /v1/tts", 2)
    assert values_of(first)["http.response.status_code"] == refused.status_code
    assert values_of(first)["error.type"] == refused.json()["error"]["code"]
    assert first.status.code == Status.STATUS_CODE_UNSET
    assert (second.status.code, second.status.message) == (Status.STATUS_CODE_ERROR, "internal_error")
    ends = [values_of(span)["finish_reason"] for span in collector.named("speech", 2)]
    assert ends[0] == refused.json()["error"]["code"]
    assert ends[1] in ("stop", "length")
    (fault,) = [record for record in caplog.records if record.getMessage() == "request failed"]
    assert fault.fields["trace_id"] == second.trace_id.hex()


@pytest.mark.parametrize("place", ["small_engine", "apart"])
def test_a_client_that_leaves_has_a_cancelled_text_with_the_phases_that_were_reached(
    place: str, collector: Collector, request: pytest.FixtureRequest
) -> None:
    with serving(request.getfixturevalue(place)) as door:
        with door.connect() as plug:
            body = LONG_SPEECH | {"stream": True, "format": "pcm"}
            plug.sendall(raw_post(body, f"traceparent: {TRACEPARENT}"))
            while not plug.recv(65_536):
                pass
        (server,) = collector.named("POST /v1/tts")
        (speech,) = collector.named("speech")

    spans = collector.below(speech, "text", "queue", "prefill", "generation", "first_audio")
    assert "reference" not in spans
    assert values_of(speech)["finish_reason"] == "cancelled"
    assert values_of(server)["error.type"] == "client_gone"
    assert server.status.code == Status.STATUS_CODE_UNSET
    assert {span.trace_id.hex() for span in (server, speech, *spans.values())} == {TRACE}


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", TRACEPARENT.upper())],
        [("traceparent", f"{TRACEPARENT}-01")],
        [("traceparent", f"00-{'0' * 32}-{PARENT}-01")],
        [("traceparent", "00-" + "-" * 4000)],
        [("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)],
        [("X-Amzn-SageMaker-Custom-Attributes", f"traceparent={TRACE}")],
    ],
)
def test_a_request_without_a_valid_traceparent_begins_a_trace(
    headers: list[tuple[str, str]], collector: Collector, traced: Door
) -> None:
    with traced.http() as client:
        client.get("/v1/voices", headers=httpx2.Headers(headers))

    (server,) = collector.named("GET /v1/voices")
    assert server.parent_span_id == b""
    assert server.trace_id.hex() != TRACE


@pytest.mark.parametrize("state", ["a=1," * 200 + "b=2", "no member"])
def test_an_invalid_tracestate_is_dropped_and_baggage_is_never_read(
    state: str, collector: Collector, traced: Door
) -> None:
    with traced.http() as client:
        headers = {"traceparent": TRACEPARENT, "tracestate": state, "baggage": "user=secret"}
        client.get("/v1/voices", headers=headers)

    (server,) = collector.named("GET /v1/voices")
    assert (server.trace_id.hex(), server.trace_state) == (TRACE, "")
    assert "secret" not in str(server)


def test_a_client_that_does_not_sample_gets_no_spans_but_its_trace_in_the_log(
    collector: Collector, traced: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "s1_mini.server.access")
    with traced.http() as client:
        client.post("/v1/tts", json=SPEECH, headers={"traceparent": TRACEPARENT[:-1] + "0"})
        client.get("/health")  # probes have no spans
        client.get("/v1/voices")

    (only,) = collector.named("GET /v1/voices")
    assert collector.spans == [only]
    assert log_lines(caplog)[0]["trace_id"] == TRACE


def test_a_session_is_one_trace_with_a_span_for_each_text(collector: Collector, traced: Door) -> None:
    with connect(
        f"ws://127.0.0.1:{traced.port}/v1/audio/speech/stream", additional_headers={"traceparent": TRACEPARENT}
    ) as session:
        session.send(json.dumps({"type": "session.config", "seed": 1, "max_new_tokens": 10}))
        session.send(json.dumps({"type": "input.text", "text": "One. Two."}))
        session.send(json.dumps({"type": "input.done"}))
        list(session)

    (server,) = collector.named("WEBSOCKET /v1/audio/speech/stream")
    texts = collector.named("speech", 2)
    assert {span.trace_id.hex() for span in (server, *texts)} == {TRACE}
    assert {span.parent_span_id for span in texts} == {server.span_id}


def test_an_error_of_a_client_in_a_session_is_not_an_error_of_the_server(collector: Collector, traced: Door) -> None:
    with connect(f"ws://127.0.0.1:{traced.port}/v1/audio/speech/stream") as session:
        session.send("nonsense")
        with suppress(ConnectionClosedError):
            list(session)

    (server,) = collector.named("WEBSOCKET /v1/audio/speech/stream")
    assert values_of(server)["error.type"] == "body_invalid"
    assert server.status.code == Status.STATUS_CODE_UNSET


def test_what_a_client_sends_is_in_no_name_of_a_span_and_in_no_warning(
    collector: Collector, traced: Door, caplog: pytest.LogCaptureFixture
) -> None:
    with traced.http() as client:
        client.request("SECRET", "/v1/voices", headers={"traceparent": TRACEPARENT, "tracestate": "no secret"})

    wait_until(lambda: collector.spans)
    (server,) = collector.spans
    assert server.name.split()[0] == "HTTP"
    assert values_of(server)["http.request.method"] == "_OTHER"
    assert "secret" not in (str(server) + caplog.text).lower()


def test_a_text_that_the_engine_refuses_at_once_has_a_span(collector: Collector, traced: Door) -> None:
    with traced.http() as client:
        refused = client.post("/v1/tts", json={**SPEECH, "top_k": 5})

    (speech,) = collector.named("speech")
    assert values_of(speech)["finish_reason"] == refused.json()["error"]["code"]


def test_an_invocation_takes_the_trace_from_its_custom_attributes(
    collector: Collector, small_engine: ProductionTTSEngine
) -> None:
    app = make_container_app(small_engine, ServerSettings(host="127.0.0.1", port=0))
    with listening(app, small_engine) as door, door.http() as client:
        attributes = {"X-Amzn-SageMaker-Custom-Attributes": f"route=/v1/tts,traceparent={TRACEPARENT}"}
        assert client.post("/invocations", json=SPEECH, headers=attributes).status_code == 200

    (speech,) = collector.named("speech")
    assert speech.trace_id.hex() == TRACE


def test_an_asynchronous_invocation_continues_the_trace_although_its_request_was_answered_before(
    collector: Collector, small_engine: ProductionTTSEngine, tmp_path: Path
) -> None:
    settings = ServerSettings(host="127.0.0.1", port=0)
    app = make_container_app(small_engine, settings, endpoint="speech", store=open_store(str(tmp_path)))
    with listening(app, small_engine) as door, door.http() as client:
        headers = {"traceparent": TRACEPARENT}
        answer = client.post("/endpoints/speech/async-invocations", json=SPEECH, headers=headers)
        assert answer.status_code == 202
        (server,) = collector.named("POST /endpoints/{name}/async-invocations")
        (speech,) = collector.named("speech")

    assert (speech.trace_id.hex(), speech.parent_span_id) == (TRACE, server.span_id)
    assert {*collector.below(speech, "text", "generation")} >= {"text", "generation"}


def test_a_text_of_home_assistant_begins_a_trace(collector: Collector, short_engine: ProductionTTSEngine) -> None:
    pytest.importorskip("wyoming")
    from wyoming.audio import AudioStop
    from wyoming.tts import Synthesize

    from tests.server.test_wyoming import exchange, home

    with home(short_engine) as (_, port):
        exchange(port, Synthesize("Hi."), end=AudioStop)
        (server,) = collector.named("WYOMING wyoming/synthesize")

    (speech,) = collector.named("speech")
    assert (server.parent_span_id, speech.parent_span_id) == (b"", server.span_id)


def test_without_configuration_nothing_is_imported() -> None:
    program = "import sys\nfrom s1_mini.server.app import open_tracing\nprint(open_tracing(), *sys.modules)"
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", program]
    opened, *modules = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()

    assert opened == "None"
    assert not [name for name in modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "google"))]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OTEL_SDK_DISABLED": "True"}, None),
        ({"OTEL_TRACES_EXPORTER": "none"}, None),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "1"}, "max_export_batch_size must be .+"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "host:4318"},
            "OTEL_EXPORTER_OTLP_ENDPOINT must begin with http://.+",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "me:sesame@10.0.0.1:4318/v1/traces"},
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must begin with http:// or https://",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}, "Invalid IPv6 URL"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not supported; .+"),
        ({}, r"OTEL_EXPORTER_OTLP_ENDPOINT needs opentelemetry-exporter-.+, opentelemetry-sdk, which are not .+"),
    ],
)
def test_variables_turn_traces_off_and_a_missing_extra_or_an_invalid_variable_is_only_a_warning(
    variables: dict[str, str],
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not variables:
        monkeypatch.setattr("s1_mini.extras.find_spec", lambda _: None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert tracing.open_tracing() is None

    said = [record.getMessage().removeprefix("requests are not traced: ") for record in caplog.records]
    assert len(said) == (message is not None)
    assert message is None or re.fullmatch(message, said[0])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://collector:4318", "http://collector:4318"),
        ("https://me:sesame@[::1]:4318/traces?key=sesame", "https://[::1]:4318/traces"),
    ],
)
def test_a_line_in_the_log_names_the_collector_without_its_password(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=sesame")

    with caplog.at_level("INFO", "s1_mini.server"):
        opened = tracing.open_tracing()

    assert opened is not None
    asyncio.run(opened.close())
    lines = [record for record in caplog.records if record.name == tracing.logger.name]
    assert [line.fields for line in lines] == [{"event": "tracing", "endpoint": shown}]
    assert "sesame" not in caplog.text


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        monkeypatch.setattr(tracing, "CLOSE_S", 0.01)
        opened = tracing.open_tracing()
        assert opened is not None
        opened.begin("id", "GET").end(None, 200, None, {})
        began = threading.active_count()
        asyncio.run(opened.close())
        assert threading.active_count() > began  # it still sends
