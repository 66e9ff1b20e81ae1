"""The server behaves as /openapi.json says: every bound and every choice of every field is tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from door_room import Door
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.server import routes, routes_public
from s1_mini.server.app import create_app
from s1_mini.server.protocols import openai, websocket
from s1_mini.server.settings import ServerSettings

JSON, FORM = "application/json", "multipart/form-data"
SPEECH = {"max_new_tokens": 1}
ELEVENLABS = [f"/v1/text-to-speech/{{voice}}{end}" for end in ("", "/stream", "/with-timestamps")]
ELEVENLABS += ["/v1/text-to-speech/{voice}/stream/with-timestamps"]
BODIES = {
    ("/v1/tts", JSON): SPEECH | {"text": "Hi.", "stream": True},
    ("/v1/tts", FORM): SPEECH | {"text": "Hi.", "stream": "true"},
    ("/v1/tts/batch", JSON): SPEECH | {"items": [{"text": " "}]},  # cheap: the item fails, the batch does not
    ("/v1/audio/speech", JSON): SPEECH | {"input": "Hi."},
    ("/dev/captioned_speech", JSON): SPEECH | {"input": "Hi.", "return_timestamps": False},
    **{(path, JSON): SPEECH | {"text": "Hi."} for path in ELEVENLABS[::3]},  # of four with one schema
    ("/v1/voices", FORM): {"name": "carl", "text": "Ah.", "audio": b"no audio"},
}
KEYWORDS = {
    *("additionalProperties", "anyOf", "const", "default", "description", "enum", "examples", "exclusiveMaximum"),
    *("exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum"),
    *("pattern", "properties", "required", "title", "type", "$ref"),
}


@pytest.fixture
def told(http: httpx2.Client) -> dict[str, Any]:
    """The document."""
    document: dict[str, Any] = http.get("/openapi.json").json()
    return document


def schema_of(told: dict[str, Any], path: str, kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = told["paths"][path]["post"]["requestBody"]["content"][kind]["schema"]
    return schema


def schemas(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema in a document, including nested ones."""
    if isinstance(part, list):
        for each in part:
            yield from schemas(each)
    elif isinstance(part, dict):
        for name, each in part.items():
            if name == "schema":
                yield from within(each)
            elif name == "schemas":
                for schema in each.values():
                    yield from within(schema)
            else:
                yield from schemas(each)


def within(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    inner += [each for name in ("items", "additionalProperties") if isinstance(each := schema.get(name), dict)]
    for each in inner:
        yield from within(each)


def kinds_of(field: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the types that a field may have, except null."""
    return [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]


def allowed(kind: dict[str, Any]) -> list[Any]:
    """Yield values at the bounds, and every choice."""
    values = list(kind.get("enum", []))
    values += [kind[name] for name in ("minimum", "maximum") if name in kind]
    values += [
        kind[name] + step for name, step in (("exclusiveMinimum", 0.01), ("exclusiveMaximum", -1024)) if name in kind
    ]
    values = [int(value) for value in values] if kind["type"] == "integer" else values  # forms have no 9e18
    if kind["type"] == "array":
        values += [[{"text": " "}] * kind[name] for name in ("minItems", "maxItems") if name in kind]
    return values


def forbidden(kind: dict[str, Any]) -> list[Any]:
    """Yield values just out of bounds, and of another type."""
    values: list[Any] = [kind[name] + step for name, step in (("minimum", -1), ("maximum", 1)) if name in kind]
    values += [kind[name] for name in ("exclusiveMinimum", "exclusiveMaximum") if name in kind]
    values += ["none of these"] if "enum" in kind or kind["type"] in ("number", "integer", "boolean") else []
    values += ["a" * (kind["minLength"] - 1)] if kind.get("minLength") else []
    values += ["a" * (kind["maxLength"] + 1)] if "maxLength" in kind else []
    values += ["../No"] if "pattern" in kind else []
    values += [1.5] if kind["type"] == "integer" else []
    if kind["type"] == "array":
        values += [[]] if kind.get("minItems") else []
        values += [[{"text": " "}] * (kind["maxItems"] + 1)]
    return values


def ask(client: httpx2.Client, path: str, kind: str, body: dict[str, Any]) -> tuple[int, str | None]:
    """Return the status and the field at fault, without waiting for the audio."""
    parts = {name: value if isinstance(value, bytes) else (None, str(value)) for name, value in body.items()}
    sent: dict[str, Any] = {"json": body} if kind == JSON else {"files": parts}
    with client.stream("POST", path.format(voice="default"), **sent) as answer:
        if answer.status_code == 200:
            return 200, None
        return answer.status_code, json.loads(answer.read())["error"]["field"]


def invalid_of(path: str) -> int:
    """Return the status of a wrong field."""
    return 400 if path.startswith("/v1/audio/") else 422


@pytest.mark.parametrize(("path", "kind"), BODIES)
def test_each_field_accepts_what_its_schema_allows_and_nothing_else(
    http: httpx2.Client, told: dict[str, Any], path: str, kind: str
) -> None:
    wrong, num_tried = [], 0
    for name, field in schema_of(told, path, kind)["properties"].items():
        cases = [(value, True) for form in kinds_of(field) for value in allowed(form)]
        cases += [(value, False) for form in kinds_of(field) for value in forbidden(form)]
        for value, is_allowed in cases:
            if kind == FORM and isinstance(value, bytes | list):
                continue
            if name == "top_k" and is_allowed and value:
                continue  # this checkpoint has none
            if name == "references" and is_allowed:
                continue  # needs a recording
            if value == "ssml" and is_allowed:
                continue  # the text of this test is not SSML
            status, at_fault = ask(http, path, kind, BODIES[path, kind] | {name: value})
            refused = status == invalid_of(path) and at_fault == name
            num_tried += 1
            if refused is is_allowed or (is_allowed and status != 200):
                wrong.append((name, str(value)[:40], status, at_fault))

    assert wrong == []
    assert num_tried >= 2


@pytest.mark.parametrize(("path", "kind"), BODIES)
def test_only_declared_fields_are_accepted_where_the_schema_says_so(
    http: httpx2.Client, told: dict[str, Any], path: str, kind: str
) -> None:
    refuses = schema_of(told, path, kind).get("additionalProperties") is False

    status, at_fault = ask(http, path, kind, BODIES[path, kind] | {"pitch": 3})

    assert ((status, at_fault) == (invalid_of(path), "pitch")) is refuses


@pytest.mark.parametrize(("path", "kind"), [each for each in BODIES if each[1] == JSON])
def test_json_may_begin_with_a_byte_order_mark_and_another_encoding_is_named(
    http: httpx2.Client, path: str, kind: str
) -> None:
    def post(encoding: str) -> httpx2.Response:
        content = json.dumps(BODIES[path, kind]).encode(encoding)
        return http.post(path.format(voice="default"), content=content, headers={"Content-Type": kind})

    assert post("utf-8-sig").status_code == post("utf-8").status_code == 200
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"):
        refused = post(encoding)
        assert refused.status_code == 400
        assert f"the body is {encoding[:6].upper()}; send JSON as UTF-8" in refused.json()["error"]["message"]


def test_routes_are_built_when_they_are_imported_and_not_during_the_first_request(door: Door) -> None:
    for router in (*routes.routers, *routes_public.routers, openai.router, websocket.router):
        assert all(any(route is each for each in door.app.routes) for route in router.routes)


def test_every_schema_is_valid_json_schema(told: dict[str, Any]) -> None:
    found = list(schemas(told))
    for schema in found:
        assert set(schema) <= KEYWORDS, schema
        Draft202012Validator.check_schema(schema)
    assert len(found) > 100


def test_bounds_that_depend_on_settings_are_documented_as_set() -> None:
    engine = ProductionTTSEngine(EngineConfig(max_text_length=77))
    output = create_app(engine, ServerSettings(max_batch_items=3)).openapi()

    items = schema_of(output, "/v1/tts/batch", JSON)["properties"]["items"]
    assert items["maxItems"] == 3
    assert items["items"]["properties"]["text"]["maxLength"] == 77
    assert schema_of(output, "/v1/audio/speech", JSON)["properties"]["input"]["maxLength"] == 77
    assert schema_of(output, "/v1/tts", FORM)["properties"]["text"]["maxLength"] == 77


def test_generated_clients_name_their_functions_as_before(told: dict[str, Any]) -> None:
    names = {path: told["paths"][path]["get"]["operationId"] for path in ("/ping", "/ready", "/v1/voices/{name}")}

    assert list(names.values()) == ["ping_ping_get", "ready_ready_get", "describe_voice_v1_voices__name__get"]


def test_only_possible_errors_are_declared(told: dict[str, Any]) -> None:
    def statuses(path: str, method: str) -> set[str]:
        return set(told["paths"][path][method]["responses"])

    assert statuses("/health", "get") == statuses("/metrics", "get") == {"200"}
    assert statuses("/ping", "get") == {"200", "503"}
    assert statuses("/v1/models", "get") == {"200", "401"}
    assert statuses("/v1/voices", "get") == {"200", "401", "503"}
    assert statuses("/v1/voices/{name}", "get") == {"200", "401", "404", "500", "503"}
    assert statuses("/v1/voices/{name}", "delete") == {"204", "401", "404", "409", "503", "507"}
    assert "HTTPValidationError" not in json.dumps(told)


def test_the_status_of_a_wrong_query_parameter_is_declared(told: dict[str, Any], http: httpx2.Client) -> None:
    queries = [
        (path, each["name"], operations["get"]["responses"])
        for path, operations in told["paths"].items()
        for each in operations.get("get", {}).get("parameters", [])
        if each["in"] == "query"
    ]
    statuses = [str(http.get(path, params={name: "?" * 1001}).status_code) for path, name, _ in queries]

    undeclared = [(*each[:2], status) for each, status in zip(queries, statuses, strict=True) if status not in each[2]]
    assert undeclared == []
    assert {"200", "400", "422"} <= set(statuses)
