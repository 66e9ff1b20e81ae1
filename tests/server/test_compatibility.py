"""Each line of docs/compatibility.md, with the client libraries of the services against a server with a real voice."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import urlencode

import boto3
import botocore.session
import httpx2
import openai
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from openai.types.audio.speech_create_params import SpeechCreateParams
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from compatibility import OPERATIONS, PAGE, ROUTES, Field, Operation, page
from tests.server.conftest import Door, serving
from waiting import EVENTUALLY_S

elevenlabs = pytest.importorskip("elevenlabs", reason="pip install -r requirements-test.lock.txt")
pytest.importorskip("av", reason="pip install -r requirements-test.lock.txt")

pytestmark = pytest.mark.slow

TEXT = "Hi."
PLS = "<lexicon><lexeme><grapheme>hi</grapheme><alias>hello</alias></lexeme></lexicon>"
SOCKETS = ("stream_input", "multi_stream_input")
ROUTE_OF = {route.key: route for route in ROUTES}
Send = Callable[[dict[str, Any]], Any]


class RefusedError(Exception):
    """An error response, with its message."""


@pytest.fixture(scope="module")
def door(built_in: Door) -> Iterator[Door]:
    """A server of its own, which keeps a lexicon."""
    with serving(built_in.engine) as door:
        yield door


@pytest.fixture(scope="module")
def senders(door: Door) -> Iterator[dict[str, Send]]:
    """What sends a request to each route, with the changes to its base."""
    with (
        openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as openai_client,
        door.client() as http,
        pytest.importorskip("httpx").Client(trust_env=False, verify=False, timeout=EVENTUALLY_S) as plain,
    ):
        text_to_speech = elevenlabs.ElevenLabs(base_url=door.url, api_key="none", httpx_client=plain).text_to_speech
        polly = polly_of(door)
        polly.put_lexicon(Name="names", Content=PLS)

        def speak_openai(changes: dict[str, Any]) -> bytes:
            base = {"input": TEXT, "model": "tts-1", "voice": "clara", "response_format": "pcm"}
            try:
                return openai_client.audio.speech.create(**base | changes, extra_body={"seed": 1}).content
            except openai.APIStatusError as error:
                raise RefusedError(str(error)) from None

        def speak_elevenlabs(method: str) -> Send:
            def send(changes: dict[str, Any]) -> Any:
                base = {"text": TEXT, "voice_id": "clara", "output_format": "pcm_24000", "seed": 1}
                try:
                    answer = getattr(text_to_speech, method)(**base | changes)
                    return b"".join(answer) if "timestamps" not in method else [*answer]
                except pytest.importorskip("elevenlabs.core.api_error").ApiError as error:
                    raise RefusedError(str(error.body)) from None

            return send

        def speak_polly(changes: dict[str, Any]) -> bytes:
            base = {"Text": TEXT, "VoiceId": "clara", "OutputFormat": "pcm"}
            try:
                return polly.synthesize_speech(**base | changes)["AudioStream"].read()
            except ClientError as error:
                raise RefusedError(str(error)) from None

        senders = {
            "openai": speak_openai,
            "elevenlabs": speak_elevenlabs("convert"),
            "elevenlabs_stream": speak_elevenlabs("stream"),
            "elevenlabs_timed": speak_elevenlabs("convert_with_timestamps"),
            "elevenlabs_stream_timed": speak_elevenlabs("stream_with_timestamps"),
            "stream_input": lambda changes: converse(door, "stream-input", changes, {"text": ""}),
            "multi_stream_input": lambda changes: converse(
                door, "multi-stream-input", changes, {"close_socket": True}, context_id="first"
            ),
            "polly": speak_polly,
            "kokoro": speak_kokoro(http, "/v1/audio/speech"),
            "captions": speak_kokoro(http, "/dev/captioned_speech", stream=False),
        }
        remembered = cache(lambda key, changes: senders[key](json.loads(changes)))
        yield {key: lambda changes, key=key: remembered(key, json.dumps(changes)) for key in senders}


def speak_kokoro(http: httpx2.Client, path: str, **more: Any) -> Send:
    def send(changes: dict[str, Any]) -> bytes:
        base = {"input": TEXT, "voice": "clara", "response_format": "pcm", "seed": 1, **more}
        answer = http.post(path, json=base | changes)
        if answer.is_error:
            raise RefusedError(answer.text)
        return answer.content

    return send


def polly_of(door: Door) -> Any:
    return boto3.client(
        "polly",
        endpoint_url=door.url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 0}, parameter_validation=False),
    )


def converse(door: Door, path: str, changes: dict[str, Any], last: dict[str, Any], **always: str) -> Any:
    """Return audio, times and contexts of a session, each of whose messages but the last has the changes.

    Changes with a question mark are parameters of the query.
    """
    query = {"output_format": "pcm_24000", "seed": 1} | {
        name[1:]: value for name, value in changes.items() if name[0] == "?"
    }
    changes = {name: value for name, value in changes.items() if name[0] != "?"}
    url = f"ws://127.0.0.1:{door.port}/v1/text-to-speech/clara/{path}?{urlencode(query)}"
    received = []
    try:
        socket = connect(url, proxy=None)
    except InvalidStatus as error:
        raise RefusedError(error.response.body.decode()) from None
    with socket:
        with suppress(ConnectionClosed):  # by a refusal
            for message in ({"text": " "}, {"text": "Oh, "}, {"text": "hi. "} | ({"flush": True} if always else {})):
                socket.send(json.dumps(message | always | changes))
            socket.send(json.dumps(last | always))
        try:
            while True:
                received.append(json.loads(socket.recv(timeout=EVENTUALLY_S)))
        except ConnectionClosed:
            pass
    if errors := [message for message in received if "error" in message]:
        raise RefusedError(str(errors))
    return (
        "".join(message.get("audio") or "" for message in received),
        [message["alignment"] for message in received if message.get("alignment")],
        {message.get("contextId") for message in received},
    )


def with_value(field: Field, value: Any) -> dict[str, Any]:
    outer, _, inner = field.name.partition(".")
    return field.given | {outer: {inner: value} if inner else value}


# A field that several routes share is sent to the first of them: they have one table on the page.
SHARED = {id(field): (route.key, field) for route in reversed(ROUTES) for field in route.fields}.values()
CASES = [
    pytest.param(route, field, value, id=f"{route}-{field.name}-{str(value)[:20]}")
    for route, field in reversed(SHARED)
    for value in field.acts
]
REFUSALS = [(route, field, value) for route, field in reversed(SHARED) for value in field.refused]


@pytest.mark.parametrize(("route", "field", "value"), CASES)
def test_a_field_that_acts_changes_the_response(senders: dict[str, Send], route: str, field: Field, value: Any) -> None:
    base = senders[route](field.given)

    assert base
    assert senders[route](with_value(field, value)) != base


@pytest.mark.parametrize("route", ROUTE_OF)
def test_ignored_fields_do_not_change_the_response(senders: dict[str, Send], route: str) -> None:
    changes: dict[str, Any] = {}
    for field in ROUTE_OF[route].fields:
        for value in field.ignored:
            for outer, content in with_value(field, value).items():
                changes[outer] = changes.get(outer, {}) | content if "." in field.name else content

    assert senders[route](changes) == senders[route]({})


@pytest.mark.parametrize(("route", "field", "value"), REFUSALS)
def test_a_refusal_names_the_field_or_the_value(senders: dict[str, Send], route: str, field: Field, value: Any) -> None:
    with pytest.raises(RefusedError) as refused:
        senders[route](with_value(field, value))

    message = str(refused.value)
    assert field.name.lstrip("?").rpartition(".")[2] in message or str(value)[:50] in message


def parameters(function: Any) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self", "request_options"}


def fields_of_client(route: str) -> set[str]:
    """Return the fields that the client library of a route has; Kokoro-FastAPI has no library."""
    types = elevenlabs.types
    if route == "openai":
        return {*SpeechCreateParams.__annotations__}
    if route == "polly":
        return {*polly_model().operation_model("SynthesizeSpeech").input_shape.members}
    if route in SOCKETS:
        messages = (types.InitializeConnection, types.SendText, types.FlushContext)
        if route == "multi_stream_input":
            messages = (types.InitializeConnectionMulti, types.SendTextMulti, types.WebsocketTtsClientMessageMulti)
        names = {name for message in messages for name in message.model_fields} - {"voice_settings"}
        if route == "stream_input":
            names -= {"context_id"}
        return names | {f"voice_settings.{name}" for name in types.RealtimeVoiceSettings.model_fields}
    client = elevenlabs.text_to_speech.client.TextToSpeechClient
    names = parameters(client.convert) | parameters(client.stream) | parameters(client.stream_with_timestamps)
    settings = {f"voice_settings.{name}" for name in types.VoiceSettings.model_fields}
    return names - {"voice_settings"} | settings


def polly_model() -> Any:
    return botocore.session.get_session().get_service_model("polly")


@pytest.mark.parametrize("route", [key for key in ROUTE_OF if key not in ("kokoro", "captions")])
def test_the_table_has_each_field_of_the_client(route: str) -> None:
    names = {field.name for field in ROUTE_OF[route].fields}
    assert {name for name in names if name[0] != "?"} == fields_of_client(route)


def methods_of_client(api: str) -> set[str]:
    if api == "Amazon Polly":
        return {*polly_model().operation_names}
    if api == "OpenAI":
        client, groups = (
            openai.OpenAI(api_key="none"),
            ("audio.speech", "audio.voices", "audio.voice_consents", "models"),
        )
    else:
        client = elevenlabs.ElevenLabs(api_key="none")
        groups = ("text_to_speech", "text_to_dialogue", "voices", "models")
    found = set()
    for group in groups:
        resource = client
        for name in group.split("."):
            resource = getattr(resource, name)
        found |= {f"{group}.{name}" for name, _ in inspect.getmembers(resource, inspect.ismethod) if name[0] != "_"}
    return found


@pytest.mark.parametrize("api", [api for api in OPERATIONS if api != "Kokoro-FastAPI"])
def test_the_table_has_each_method_of_the_client(api: str) -> None:
    assert {operation.name for operation in OPERATIONS[api]} == methods_of_client(api)


@pytest.mark.parametrize(
    ("api", "operation"),
    [(api, each) for api, operations in OPERATIONS.items() for each in operations if "WebSocket" not in each.route],
)
def test_a_method_s_route_exists_or_is_missing_as_the_table_says(door: Door, api: str, operation: Operation) -> None:
    method, path = operation.route.split()
    signature = "AWS4-HMAC-SHA256 Credential=any/20261125/us-east-1/polly/aws4_request, SignedHeaders=host"
    with door.client() as http:
        answer = http.request(
            method,
            re.sub(r"\{\w+\}", "some", path),
            json={} if method in ("POST", "PUT") else None,
            headers={"Authorization": signature} if api == "Amazon Polly" else {},
        )

    is_missing = answer.is_error and answer.json()["error"]["code"] in ("not_found", "method_not_allowed")
    is_missing &= not re.search("unknown (model|consent)", answer.text)
    assert is_missing is not operation.is_present, answer.text


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/compatibility.py"
