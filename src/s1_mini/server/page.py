"""`GET /`, `/docs` and `/static/…`: the page to listen on and that of the API.

Files of the package as they lie there; knows no engine.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles

DIRECTORY = Path(__file__).parent / "static"

# Named here because Windows takes what `mimetypes` says from its registry, and browsers run no module of another type.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS = {
    # Nothing but the page's own files and this server; `blob:` is a recording that is heard before it is sent.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)
files = StaticFiles(directory=DIRECTORY, check_dir=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """Give the page."""
    return await _file("index.html", request)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request) -> Response:
    """Give the page of the API, which needs no file from elsewhere."""
    return await _file("docs.html", request)


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
async def static(name: str, request: Request) -> Response:
    """Give one of the page's own files, 304 where the browser has it."""
    return await _file(name, request)


async def _file(name: str, request: Request) -> Response:
    media_type = MEDIA_TYPES.get(PurePath(name).suffix)
    if media_type is None:
        raise HTTPException(404)
    response = await files.get_response(name, request.scope)
    response.headers.update({**HEADERS, "Content-Type": media_type})
    return response
