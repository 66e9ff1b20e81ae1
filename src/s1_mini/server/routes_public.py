"""Routes without a key: the web page `/`, Swagger UI at `/docs`, and probes, which never wait for the engine.

`/static/` has the files of this package and the Swagger UI files of the package fastapi-offline.
"""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePath
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.staticfiles import StaticFiles

from s1_mini.server.schemas import ErrorAnswer
from s1_mini.server.state import state_of

DIRECTORY = Path(__file__).parent / "static"

# On Windows, `mimetypes` reads the registry, which may be wrong, and browsers refuse modules of another type.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS = {
    # Pages may load files and send requests only to this server; `blob:` plays a recording before it is sent.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
DOCS_HEADERS = HEADERS | {
    # Swagger UI's style sheet has icons as data: URLs
    "Content-Security-Policy": HEADERS["Content-Security-Policy"].replace("img-src 'self'", "img-src 'self' data:"),
}

pages_router, health_router = APIRouter(include_in_schema=False), APIRouter(tags=["health"])
routers = (health_router, pages_router)
_UNREADY: dict[int | str, dict[str, Any]] = {503: {"model": ErrorAnswer, "description": "Not ready"}}
PING: dict[str, Any] = {"response_class": Response, "summary": "Readiness", "responses": _UNREADY, "tags": ["health"]}
files = StaticFiles(directory=DIRECTORY, packages=[("fastapi_offline", "static")], check_dir=False)


@pages_router.get("/")
async def page(request: Request) -> Response:
    return await _file("index.html", request)


@pages_router.get("/docs")
async def docs(request: Request) -> Response:
    """Return Swagger UI, which loads nothing from other hosts."""
    return await _file("docs.html", request, DOCS_HEADERS)


@pages_router.get("/static/{name}")
async def static(name: str, request: Request) -> Response:
    """Return a file of the pages, or 304 if the browser has it."""
    return await _file(name, request)


async def _file(name: str, request: Request, headers: dict[str, str] = HEADERS) -> Response:
    media_type = MEDIA_TYPES.get(PurePath(name).suffix)
    if media_type is None:
        raise HTTPException(404)
    response = await files.get_response(name, request.scope)
    response.headers.update({**headers, "Content-Type": media_type})
    return response


@health_router.get(
    "/ready", name="ready", response_class=Response, summary="Readiness (alias of /ping)", responses=_UNREADY
)
async def ping(request: Request) -> Response:
    """Return 200 without a body if requests are accepted; otherwise 503 (starting, failed or shutting down)."""
    if (refused := state_of(request).gate.refusal()) is not None:
        raise refused
    return Response()


@health_router.get("/health", summary="The engine's state")
async def health(request: Request) -> dict[str, Any]:
    """Return the engine's state, device, queue, slots, caches and memory, and the resources held by clients.

    The status is always 200; `ready` is true if `/ready` returns 200.
    """
    gate = state_of(request).gate
    refused = gate.refusal()
    server = {
        "requests": gate.num_inside,
        "draining": gate.is_draining,
        "unloaded": gate.is_unloaded,
        "held": gate.accounts.describe(),
    }
    reason = {} if refused is None else {"reason": str(refused)}
    return {**await asyncio.to_thread(gate.health), "ready": refused is None, "server": server, **reason}


@health_router.get("/metrics", response_class=Response, summary="Metrics for Prometheus")
async def metrics(request: Request) -> Response:
    """Return the metrics of engine and server in Prometheus' text format."""
    content, kind = await asyncio.to_thread(state_of(request).meter.text)
    return Response(content, media_type=kind)
