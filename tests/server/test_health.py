"""Health, metrics, OpenAPI and log lines of the server."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from pathlib import Path

import httpx2
import pytest
from websockets.sync.client import connect

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.server.logs import JsonFormatter
from s1_mini.types import EngineState
from tests.server.conftest import Door, serving
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
BODY = {"text": "Good morning.", "max_new_tokens": 8}


def test_ping_and_ready_are_200_and_empty(http: httpx2.Client) -> None:
    assert [(http.get(path).status_code, http.get(path).content) for path in ("/ping", "/ready")] == [(200, b"")] * 2


def test_every_get_route_answers_head_with_its_headers_and_no_body(http: httpx2.Client, robin: str) -> None:
    told = http.get("/openapi.json").json()["paths"]
    paths = {
        path.format(name=robin, model="s1-mini", consent_id="none") for path, verbs in told.items() if "get" in verbs
    }
    assert len(paths) > 10

    for path in sorted(paths | {"/", "/docs", "/openapi.json", "/static/page.css", "/nowhere"}):
        get, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers.get("content-type") == get.headers.get("content-type"), path
    assert http.head("/v1/tts").headers["allow"] == "POST"


def test_health_reports_the_engines_health(http: httpx2.Client, door: Door) -> None:
    output = http.get("/health").json()

    assert output["ready"] is True
    assert set(door.engine.health_check()) <= set(output)
    assert (output["server"]["requests"], output["server"]["draining"]) == (0, False)
    assert set(output["server"]["held"]) >= {"requests", "body_bytes", "audio_bytes"}


def test_metrics_count_synthesized_audio_and_have_no_labels_of_unknown_paths(http: httpx2.Client) -> None:
    def figure(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", http.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    answered = 's1_mini_http_requests_total{route="/v1/tts",status="200"}'
    before, frames = figure(answered), figure("s1_mini_frames_total")
    http.post("/v1/tts", json=BODY)
    http.get("/made/up")

    assert figure(answered) == before + 1
    assert figure("s1_mini_frames_total") > frames
    assert figure("s1_mini_ready") == 1
    assert figure('s1_mini_slots{state="free"}') == 4
    assert figure("s1_mini_queue_seconds_count") > 0
    assert "/made" not in http.get("/metrics").text


def test_use_is_reported_by_the_names_of_keys(
    small_engine: ProductionTTSEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def send(client: httpx2.Client, key: str, body: dict[str, object], path: str = "/v1/tts") -> httpx2.Response:
        return client.post(path, json=BODY | body, headers={"Authorization": f"Bearer {key}"})

    keys = {"api_key": "first", "api_keys": "second", "api_key_names": "alice,bob"}
    with serving(small_engine, **keys) as door, door.client() as client, caplog.at_level("INFO", "s1_mini.server"):
        whole = send(client, "first", {"text": "Good morning."})
        streamed = send(client, "first", {"text": "Goodbye.", "stream": True})
        refused = send(client, "first", {"speed": 9})
        missing = send(client, "first", {"voice": "nobody"})
        items = [{"text": "Hi."}, {"text": "Oh, hello."}]
        batch = client.post(
            "/v1/tts/batch", json={"items": items, "max_new_tokens": 8}, headers={"xi-api-key": "second"}
        )
        address = f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream"
        with connect(address, proxy=None, additional_headers={"xi-api-key": "second"}) as socket:
            assert (shaken := socket.response) is not None
            socket.send('{"type": "session.config", "max_new_tokens": 8}')
            socket.send('{"type": "input.text", "text": "Good evening."}')
            socket.send('{"type": "input.done"}')
            assert any("session.done" in str(message) for message in socket)
        unknown = send(client, "third", {})
        wait_until(lambda: sum("total_ms" in each.fields for each in caplog.records if hasattr(each, "fields")) == 7)
        text = client.get("/metrics").text

    figures = dict(re.findall(r"^s1_mini_key_(\w+_total\{.*\}) (\S+)$", text, re.MULTILINE))
    counts = {name: int(float(value)) for name, value in figures.items() if "seconds" not in name}
    expected = {"requests": (4, 2), "characters": (13 + 8, 3 + 10 + 13), "refusals": (2, 0)}
    assert counts == {
        f'{name}_total{{key="{key}"}}': figure
        for name, both in expected.items()
        for key, figure in zip(("alice", "bob"), both, strict=True)
    }
    assert float(figures['audio_seconds_total{key="alice"}']) > float(whole.headers["x-audio-seconds"]) > 0
    assert [each.headers.get("x-key-name") for each in (whole, streamed, refused, missing, batch, shaken, unknown)] == [
        *["alice"] * 4,
        *["bob"] * 2,
        None,
    ]
    assert (whole.headers["x-characters"], streamed.headers["x-characters"]) == ("13", "8")
    lines = [each.fields for each in caplog.records if "total_ms" in getattr(each, "fields", {})]
    assert [line.get("key") for line in lines] == ["alice"] * 4 + ["bob", "bob", None]
    assert lines[-2]["characters"] == 13


def test_metrics_can_omit_the_engines_counters(tiny: Path) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", metrics_enabled=False))
    with serving(engine) as door, door.client() as client:
        output = client.get("/metrics").text

    assert "s1_mini_ready 1" in output
    assert "s1_mini_frames_total" not in output


def test_metrics_include_the_process(http: httpx2.Client) -> None:
    output = http.get("/metrics").text

    assert re.search(r'^python_info\{.*implementation="', output, re.MULTILINE)
    assert re.search(r"^python_gc_collections_total\{", output, re.MULTILINE)
    if sys.platform == "linux":  # on other systems the client library has no process metrics
        figures = dict(re.findall(r"^(process_\w+) (\S+)$", output, re.MULTILINE))
        assert float(figures["process_resident_memory_bytes"]) > 50e6  # torch alone needs more
        assert float(figures["process_cpu_seconds_total"]) > 0
        assert 3 <= float(figures["process_open_fds"]) <= float(figures["process_max_fds"])
        assert abs(float(figures["process_start_time_seconds"]) - time.time()) < 86_400


def test_examples_of_openapi_work(http: httpx2.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    for path in ("/v1/tts", "/v1/tts/batch", "/v1/audio/speech", "/v1/speech"):
        for example in paths[path]["post"]["requestBody"]["content"]["application/json"]["examples"].values():
            body = {name: value for name, value in example["value"].items() if name != "voice"}
            body["max_new_tokens"] = 8
            assert http.post(path, json=body).status_code == 200, body


def test_each_request_has_one_log_line(http: httpx2.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "s1_mini.server.access"):
        http.post("/v1/tts", json=BODY, headers={"X-Request-Id": "one"})
        http.get("/ping", headers={"X-Request-Id": "two"})
        wait_until(lambda: caplog.records)

    output = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    lines = [line for line in output if line.get("request_id") in ("one", "two")]
    assert len(lines) == 1
    assert lines[0] | {"request_id": "one", "route": "/v1/tts", "status": 200, "voice": "default"} == lines[0]
    assert lines[0]["total_ms"] >= lines[0]["first_chunk_ms"] >= lines[0]["body_ms"] >= 0
    parts = [lines[0][name] for name in ("queue_ms", "prefill_ms")]
    assert min(parts) >= 0
    assert sum(parts) <= lines[0]["first_chunk_ms"]
    assert lines[0]["frames"] > 0
    assert lines[0]["real_time_factor"] > 0


def test_the_answer_to_a_handshake_has_the_id_of_the_request(door: Door) -> None:
    address = f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream"
    with connect(address, proxy=None, additional_headers={"X-Request-Id": "ours"}) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"] == "ours"


def test_lines_are_metrics_for_cloudwatch_if_it_is_set(
    small_engine: ProductionTTSEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "s1_mini.server.access"),
        serving(small_engine, cloudwatch_namespace="speech") as door,
        door.client() as client,
    ):
        client.post("/v1/tts", json=BODY)
        client.post("/v1/tts", json={"text": ""})
        client.post("/made/up")
        wait_until(lambda: len(caplog.records) == 3)

    spoken, refused, made_up = (json.loads(JsonFormatter().format(record)) for record in caplog.records)
    for line, names in ((spoken, {"queue_ms", "first_chunk_ms", "total_ms", "failed"}), (refused, {"total_ms"})):
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        output = {metric["Name"] for metric in directive["Metrics"]}
        assert abs(line["_aws"]["Timestamp"] / 1000 - time.time()) < 60
        assert directive["Namespace"] == "speech"
        assert directive["Dimensions"] == [[], ["route"]]
        assert isinstance(line["route"], str)
        assert names <= output
        assert all(isinstance(line[name], int | float) for name in output)
    assert "_aws" not in made_up


def test_the_dashboard_shows_only_existing_metrics(http: httpx2.Client) -> None:
    http.post("/v1/tts", json=BODY)
    there = set(re.findall(r"^(?:# TYPE )?(s1_mini_\w+)", http.get("/metrics").text, re.MULTILINE))
    panels = json.loads((ROOT / "docs/grafana.json").read_text())["panels"]

    for panel in panels:
        shown = {name for target in panel["targets"] for name in re.findall(r"s1_mini_\w+", target["expr"])}
        assert shown, panel["title"]
        assert shown <= there, panel["title"]


def test_a_dead_engine_is_reported_and_stays_reported(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu"))
    with serving(engine) as door, door.client() as client:
        monkeypatch.setattr(engine, "state", lambda: EngineState("failed"))
        wait_until(lambda: door.app.state.gate.failure is not None)
        answers = [client.get("/ping"), client.get("/ready"), client.post("/v1/tts", json=BODY)]
        output = client.get("/health").json()

    assert [answer.status_code for answer in answers] == [503] * 3
    assert {answer.json()["error"]["code"] for answer in answers} == {"engine_not_ready"}
    assert output["ready"] is False
