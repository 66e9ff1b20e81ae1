"""The OpenAPI document: helpers for routes to declare bodies, responses and errors, and bounds from settings."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from s1_mini.audio.container import FORMATS, media_type
from s1_mini.server.limits import is_public
from s1_mini.server.schemas import ErrorAnswer

_REASONS = {
    400: "Malformed body; on OpenAI's routes also an invalid field, named in `field`",
    401: "The API key is missing or wrong",
    403: "The request comes from a page of another site, or its Host is not a name of this server",
    404: "Not found",
    405: "Method not allowed",
    406: "No media type in Accept is supported",
    408: "The body arrived too slowly",
    409: "Already exists, or cannot be changed",
    413: "The body is too large",
    415: "Unsupported content type",
    422: "Invalid field, named in `field`",
    429: "Too many requests from this client",
    500: "The server or the model failed",
    503: "Not ready, busy or shutting down; see Retry-After",
    504: "Timeout",
    507: "Insufficient storage",
}
ALWAYS = (400, 401, 403, 408, 413, 415, 422, 429, 503)  # possible for every route with a body
TEXTS = ("text", "input", "reference_text")  # fields whose maximum length is an engine setting
DESCRIPTION = """\
Select an operation and **Try it out** to send a request from this page, or use the [web page](./).

- An error has the JSON body `{"error": {"code", "message", "field", "request_id"}}`.
- If the server has an API key, requests need the header `Authorization: Bearer KEY` or `xi-api-key: KEY`.
  Enter the key with **Authorize**.
  No key is needed for `/`, `/docs`, `/static/`, `/openapi.json`, `/ping`, `/ready`, `/health`, `/metrics` and
  `/execution-parameters`.
- The WebSocket `/v1/audio/speech/stream` accepts text piece by piece. OpenAPI cannot describe it; see
  [docs/websocket.md](https://github.com/s1-mini/s1-mini/blob/main/docs/websocket.md).
  WebSockets with the messages of ElevenLabs and Deepgram are described in
  [docs/clients.md](https://github.com/s1-mini/s1-mini/blob/main/docs/clients.md).
"""
# FastAPI's schemas for errors of parameters; removed, because this server reports them as `ErrorAnswer`
_FOREIGN = ("HTTPValidationError", "ValidationError")

SPEECH_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio in the requested format",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in map(media_type, FORMATS)},
        "headers": {
            "X-Sample-Rate": {"schema": {"type": "integer"}, "description": "Sample rate of the response in Hz"},
            "X-Request-Id": {"schema": {"type": "string"}},
            "X-Characters": {"schema": {"type": "integer"}, "description": "Characters of the text, with markup"},
            "X-Audio-Seconds": {"schema": {"type": "number"}, "description": "Only if not streamed"},
            "X-Generation-Seconds": {"schema": {"type": "number"}, "description": "Only if not streamed"},
            "X-Digital-Source-Type": {
                "schema": {"type": "string", "format": "uri"},
                "description": "IPTC's term for synthetic media; absent if S1_MINI_LABEL_AUDIO is false",
            },
            "X-Finish-Reason": {"schema": {"type": "string"}, "description": "Only if not streamed: stop or length"},
        },
    }
}


class DescribedApp(FastAPI):
    """An application whose OpenAPI document includes the bounds of the settings."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, built once."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["info"]["description"] = DESCRIPTION
            if self.state.settings.keys:
                self._require_key(document)
            for operation in (each for path in document["paths"].values() for each in path.values()):
                if _FOREIGN[0] in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    self._bound(content["schema"])
            for name in _FOREIGN:
                document.get("components", {}).get("schemas", {}).pop(name, None)
        return super().openapi()

    def _require_key(self, document: dict[str, Any]) -> None:
        """Declare the key on the routes that require it, for the Authorize button of `/docs`."""
        document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            if not is_public(path):
                for operation in operations.values():
                    operation["security"] = [{"key": []}]

    def _bound(self, schema: dict[str, Any]) -> None:
        """Set the maximum text length and batch size."""
        for name, field in schema.get("properties", {}).items():
            if name == "items":
                field["maxItems"] = self.state.settings.max_batch_items
                self._bound(field["items"])
            elif name in TEXTS:
                for kind in _kinds(field):
                    kind["maxLength"] = self.state.engine.config.max_text_length


def with_types(answer: dict[int | str, dict[str, Any]], *kinds: str) -> dict[int | str, dict[str, Any]]:
    """Declare further media types of an answer."""
    more: dict[str, Any] = {kind: {} for kind in kinds}
    return {200: answer[200] | {"content": answer[200]["content"] | more}}


def failures(*statuses: int, has_body: bool = True, is_openai: bool = False) -> dict[int | str, dict[str, Any]]:
    """Declare the errors of a route: `statuses`, and those in `ALWAYS` or, without a body, 401."""
    always = {*ALWAYS} - ({422} if is_openai else set()) if has_body else {401}
    return {status: {"model": ErrorAnswer, "description": _REASONS[status]} for status in sorted({*always, *statuses})}


def body_of(model: type[BaseModel], *, form_files: tuple[str, ...] = (), is_json: bool = True) -> dict[str, Any]:
    """Declare the body of a route that parses the body itself: JSON, or a form with the files `form_files`, or both."""
    schema = inlined(model.model_json_schema())
    examples = schema.pop("examples", [])
    content: dict[str, Any] = {}
    if is_json:
        content["application/json"] = {"schema": schema}
        if examples:
            content["application/json"]["examples"] = {str(n): {"value": each} for n, each in enumerate(examples, 1)}
    if form_files:
        files = {name: {"type": "string", "format": "binary"} for name in form_files}
        needed = [*schema.get("required", []), *(name for name in form_files if not is_json)]
        fields = {name: _without_null(each) for name, each in schema["properties"].items()}
        form = schema | {"properties": fields | files, "required": needed}
        content["multipart/form-data"] = {"schema": form}
    return {"requestBody": {"required": True, "content": content}}


def _kinds(field: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a field, without null."""
    return [kind for kind in field.get("anyOf", [field]) if kind != {"type": "null"}]


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a form's field, which cannot be null."""
    if "anyOf" not in field:
        return field
    kinds = _kinds(field)
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return rest | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace references with their definitions, which are small and never recursive."""
    definitions = schema.pop("$defs", {})

    def resolve(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                return resolve(definitions[part["$ref"].rpartition("/")[2]])
            return {key: resolve(value) for key, value in part.items()}
        return [resolve(each) for each in part] if isinstance(part, list) else part

    resolved: dict[str, Any] = resolve(schema)
    return resolved
