"""`GET /`, `/docs` and `/static/…`: the web page, and Swagger UI for the API.

Serves files of this package and, for `/docs`, the Swagger UI files that the package fastapi-offline carries.
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
DOCS_HEADERS = HEADERS | {
    # Swagger UI's style sheet has icons as data: URLs
    "Content-Security-Policy": HEADERS["Content-Security-Policy"].replace("img-src 'self'", "img-src 'self' data:"),
}

router = APIRouter(include_in_schema=False)
files = StaticFiles(directory=DIRECTORY, packages=[("fastapi_offline", "static")], check_dir=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """Return the web page."""
    return await _file("index.html", request)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request) -> Response:
    """Return Swagger UI, which loads nothing from other hosts."""
    return await _file("docs.html", request, DOCS_HEADERS)


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
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
