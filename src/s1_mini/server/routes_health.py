"""How the server is: for load balancers, for people, and for Prometheus. None of it waits for the engine."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from s1_mini.server.schemas import ErrorAnswer

router = APIRouter(tags=["health"])

_UNREADY: dict[int | str, dict[str, Any]] = {503: {"model": ErrorAnswer, "description": "Not ready"}}


@router.get("/ping", response_class=Response, summary="Whether to send requests here", responses=_UNREADY)
async def ping(request: Request) -> Response:
    """Answer 200 with nothing once the engine speaks; 503 before, when it has died, and when the server goes down."""
    return _ready(request)


@router.get("/ready", response_class=Response, summary="The same under another name", responses=_UNREADY)
async def ready(request: Request) -> Response:
    """Answer as `/ping`."""
    return _ready(request)


@router.get("/health", summary="The engine's state")
async def health(request: Request) -> dict[str, Any]:
    """Return the engine's state, device, queue, slots, caches and memory, and what the server holds for clients.

    Always 200; `ready` is true when `/ready` answers 200.
    """
    gate = request.app.state.gate
    refused = gate.refusal()
    server = {"requests": gate.num_inside, "draining": gate.is_draining, "held": gate.accounts.describe()}
    told: dict[str, Any] = gate.health() | {"ready": refused is None, "server": server}
    if refused is not None:
        told["reason"] = str(refused)
    return told


@router.get("/metrics", response_class=Response, summary="Figures for Prometheus")
async def metrics(request: Request) -> Response:
    """Give the figures of engine and server in Prometheus' text format."""
    content, kind = request.app.state.meter.text()
    return Response(content, media_type=kind)


def _ready(request: Request) -> Response:
    refused = request.app.state.gate.refusal()
    if refused is not None:
        raise refused
    return Response()
